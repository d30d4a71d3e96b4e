"""Priority: most urgent first, displacing the least urgent."""

from __future__ import annotations

from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.displacing import Displacing
from schedulers.request import Request


class Priority(Displacing):
    """Most urgent first, in chunks; a more urgent arrival displaces the least urgent running request.

    A lower `priority` is more urgent; equals are served in the order they arrive, and never displace each other. While
    slots and blocks are free, nobody waits, and priorities have no visible effect. As `priority` scheduling of vLLM V1;
    the discipline is preemptive priority queueing (Cobham 1954; Kleinrock, Queueing Systems II, chapter 3).
    """

    compose = ChunkedPrefill.compose  # as in vLLM V1, a prompt that was begun goes on before urgent arrivals

    def order(self, request: Request, now: float) -> tuple[int, float]:
        """Priority, then arrival."""
        return request.priority, request.arrival_time

    def displaces(self, candidate: Request, request: Request) -> bool:
        """Only a strictly more urgent arrival does."""
        return request.priority > candidate.priority
