"""Static batching: a batch runs to completion before the next begins."""

from __future__ import annotations

from schedulers.batch import Batch
from schedulers.scheduler import Scheduler


class Static(Scheduler):
    """Whoever waits when the engine is idle forms the batch; nobody joins until its last request has finished.

    Request-level scheduling as in FasterTransformer (NVIDIA), the baseline of Orca (Yu et al., OSDI 2022, section 2).
    A request that finishes early frees its memory, but its place stays empty. Prompts are computed whole; one longer
    than the token budget of a step takes several.
    """

    def compose(self, batch: Batch, now: float) -> None:
        """Go on with the batch; form a new one when there is none."""
        running = batch.running
        for request in running:
            batch.schedule(request)
        if running:
            return
        for request in batch.waiting:
            if not batch.schedule(request, whole=True):
                break
