"""The real world: an engine that serves tokens under the same schedulers.

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from real.async_llm import AsyncLLM
    from real.engine import LLMEngine
    from real.errors import EngineDeadError
    from real.llm import LLM
    from real.outputs import CompletionOutput, RequestOutput
    from real.sampling_params import SamplingParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineDeadError",
    "LLMEngine",
    "RequestOutput",
    "SamplingParams",
]

_MODULES = {
    "LLM": "llm",
    "AsyncLLM": "async_llm",
    "CompletionOutput": "outputs",
    "EngineDeadError": "errors",
    "LLMEngine": "engine",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
