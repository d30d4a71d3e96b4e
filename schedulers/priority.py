"""Priority: most urgent first, displacing the least urgent."""

from __future__ import annotations

from collections.abc import Sequence

from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.request import Request, Status


def _urgency(request: Request) -> tuple[int, float]:
    return request.priority, request.arrival_time


class Priority(ChunkedPrefill):
    """Most urgent first, in chunks; a more urgent arrival displaces the least urgent running request.

    A lower `priority` is more urgent; equals are served in the order they arrive, and never displace each other. While
    slots and blocks are free, nobody waits, and priorities have no visible effect. As `priority` scheduling of vLLM V1;
    the discipline is preemptive priority queueing (Cobham 1954; Kleinrock, Queueing Systems II, chapter 3).
    """

    def order(self, request: Request, now: float) -> tuple[int, float]:
        """Priority, then arrival."""
        return _urgency(request)

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        """The least urgent; the latest arrival among equals. Only a strictly more urgent arrival displaces it."""
        least = max(reversed(running), key=_urgency)
        if candidate.status is Status.RUNNING or least.priority > candidate.priority:
            return least
        return None
