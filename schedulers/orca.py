"""Orca: iteration-level scheduling with the memory of the longest output reserved."""

from __future__ import annotations

from schedulers.batch import Batch
from schedulers.scheduler import Scheduler


class Orca(Scheduler):
    """Requests join and leave at every step, whole prompts beside decodes, while the longest outputs of all fit.

    Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022, Algorithm 1: a
    request reserves its prompt and `max_tokens` on admission, first come, first served; one without `max_tokens`
    reserves the model's longest request ("Orca (Max)" in Kwon et al., SOSP 2023). So nobody is preempted. A prompt
    longer than the token budget of a step is computed in several steps, alone but for decodes.
    """

    def compose(self, batch: Batch, now: float) -> None:
        """All that run, then whole prompts as they came."""
        reserved = 0
        for request in batch.running:
            batch.schedule(request)
            reserved += batch.num_blocks(request.token_limit)
        for request in batch.waiting:
            reserved += batch.num_blocks(request.token_limit)
            if reserved > self.limits.num_blocks or not batch.schedule(request, whole=True):
                break
