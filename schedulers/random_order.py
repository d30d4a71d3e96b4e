"""Random order: the yardstick that a clever order must beat."""

from __future__ import annotations

from schedulers.chance import draws
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.request import Request


class RandomOrder(ChunkedPrefill):
    """Chunked prefill, waiting requests in random order: each draws its place once, from the seed and its id.

    Service in random order has the mean wait of FCFS and a larger variance (Kingman, "On queues in which customers are
    served in random order", 1962).
    """

    def order(self, request: Request, now: float) -> float:
        """Its lot."""
        return next(draws(self.seed, request.request_id))
