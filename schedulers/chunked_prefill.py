"""Chunked prefill: decodes first, then prompts in chunks within the token budget."""

from __future__ import annotations

from typing import Any

from schedulers.batch import Batch
from schedulers.errors import InputError
from schedulers.request import Request
from schedulers.scheduler import Limits, Scheduler


class ChunkedPrefill(Scheduler):
    """Stall-free batching: every decode is in every step; what the budget has left goes to prompts as they came.

    Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024; the default
    policy of vLLM V1. The whole composition is `Scheduler.compose`.

    Args:
        limits: what the engine can hold.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        seed: not used.
    """

    def __init__(self, limits: Limits, *, max_chunk: int | None = None, seed: int = 0) -> None:
        super().__init__(limits, seed=seed)
        given: Any = max_chunk  # a config may say anything
        if given is not None and (not isinstance(given, int) or given < 1):
            raise InputError(f"max_chunk={max_chunk!r}: it must be a whole number of at least 1, or null for no limit")
        self.max_chunk = max_chunk

    def chunk(self, request: Request, batch: Batch) -> int:
        """The budget that is left, up to `max_chunk`."""
        return batch.budget_left if self.max_chunk is None else min(self.max_chunk, batch.budget_left)
