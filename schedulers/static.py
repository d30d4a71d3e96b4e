"""Static batching: a batch runs to completion before the next begins."""

from __future__ import annotations

from schedulers.batch import Batch
from schedulers.scheduler import Limits, Scheduler


class Static(Scheduler):
    """Whoever waits when the engine is idle forms the batch; nobody joins until its last request has finished.

    Request-level scheduling as in FasterTransformer (NVIDIA), the baseline of Orca (Yu et al., OSDI 2022, section 2).
    The batch's prompts are computed whole, in as many steps as the token budget makes of them, while slots and memory
    last; then all decode together. A request that finishes early frees its memory, but its place stays empty.
    """

    def __init__(self, limits: Limits, *, seed: int = 0) -> None:
        super().__init__(limits, seed=seed)
        #: Ids of those that may still enter the batch; empty once it is formed.
        self._members: set[str] = set()

    def compose(self, batch: Batch, now: float) -> None:
        """A step of whole prompts while the batch is being formed, then steps of decodes."""
        running = batch.running
        if not running:
            self._members = {request.request_id for request in batch.waiting}
        if self._members:
            for request in running:
                if request.num_remaining_tokens > 1:
                    batch.schedule(request)  # the rest of a prompt that exceeds the budget
            for request in batch.waiting:
                if request.request_id not in self._members or not batch.schedule(request, whole=True):
                    break
            if batch.is_empty:
                self._members.clear()
        if not self._members:
            for request in running:
                batch.schedule(request)
