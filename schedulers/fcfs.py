"""FCFS: iteration-level scheduling of whole prompts, prefill first."""

from __future__ import annotations

from typing import Any

from schedulers.batch import Batch
from schedulers.errors import InputError
from schedulers.request import Request
from schedulers.scheduler import Limits, Scheduler


class FCFS(Scheduler):
    """Requests join and leave the batch at every step; while a prompt can start, decodes wait.

    Iteration-level scheduling: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models",
    OSDI 2022. Steps of whole prompts alone, ahead of decodes: vLLM V0 (Kwon et al., SOSP 2023). A prompt longer than
    the token budget of a step is computed in several steps, since it could never start otherwise.

    Args:
        limits: what the engine can hold.
        watermark: share of the KV blocks that an admission must leave free, so that it is not preempted at once
            (vLLM V0: 0.01). An empty engine admits regardless.
        seed: not used.
    """

    def __init__(self, limits: Limits, *, watermark: float = 0.01, seed: int = 0) -> None:
        super().__init__(limits, seed=seed)
        given: Any = watermark  # a config may say anything
        if not isinstance(given, int | float) or not 0 <= given < 1:
            raise InputError(f"watermark={watermark!r}: it must be a number of at least 0 and less than 1")
        self.num_reserved_blocks = int(watermark * limits.num_blocks)

    def admit(self, request: Request, batch: Batch) -> bool:
        """Whether enough blocks stay free."""
        num_needed = batch.num_blocks(request.num_tokens)
        return not batch.running or batch.num_free_blocks - num_needed >= self.num_reserved_blocks

    def compose(self, batch: Batch, now: float) -> None:
        """A step of whole prompts; if none can start, a step of decodes."""
        for request in batch.running:
            if request.num_remaining_tokens > 1:
                batch.schedule(request)  # the rest of a prompt that exceeds the budget
        for request in batch.waiting:
            if not (self.admit(request, batch) and batch.schedule(request, whole=True)):
                break
        if batch.is_empty:
            for request in batch.running:
                batch.schedule(request)
