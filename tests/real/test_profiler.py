"""Where the time of a step goes, by part."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from real.config import EngineConfig
from real.profiler import StepProfiler, _TimedLayer, _Watch
from tests.real.tiny_model import write_tiny_model


def test_attention_is_what_each_layer_adds_to_it() -> None:
    watch = _Watch()
    layer, step = _TimedLayer(AttendsFor(0.5), watch), SimpleNamespace(attend_s=0.0)
    for _ in range(3):
        layer.attend(step, torch.empty(0))
    assert watch.attention == 1.5


class AttendsFor:
    """A layer whose attention takes so many seconds, it says."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def attend(self, step: Any, kv_cache: torch.Tensor) -> torch.Tensor:
        step.attend_s += self._seconds
        return kv_cache

    def feed_forward(self, step: Any) -> torch.Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_parts_of_a_step_are_parts_of_its_time(dtype: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    config = EngineConfig.from_arguments(model=str(tmp_path), dtype=dtype, device="cpu", num_blocks=16, block_size=16)
    profiler = StepProfiler(config, seed=0)
    for pieces in [((40, 0),), ((1, 30), (1, 60)), ((20, 20), (1, 5))]:
        start = time.perf_counter()
        parts = profiler.time(pieces)
        assert all(part > 0 for part in parts)
        assert sum(parts) < time.perf_counter() - start
    profiler.close()
