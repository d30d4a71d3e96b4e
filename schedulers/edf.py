"""EDF: the earliest deadline first."""

from __future__ import annotations

import math

from schedulers import checks
from schedulers.displacing import Displacing
from schedulers.request import Request
from schedulers.scheduler import Limits


class EDF(Displacing):
    """Prompts are computed by when their first token is due; whoever finds no room displaces who is due later.

    Earliest deadline first (Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
    Environment", JACM 1973) meets every set of deadlines that one server can meet. The first token is due at arrival +
    TTFT target; who has no target goes last, by arrival. Further tokens need no order: every decode is in every step,
    and none can come sooner.

    The deadline stands when a request comes back from preemption. With that of its next token instead, two requests
    would take turns, and recompute themselves, at every token; and what is urgent and long could hold memory unserved
    while others begin in vain.

    Args:
        limits: what the engine can hold.
        ttft_s: target of requests that have none of their own, seconds; None: they have none.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who goes, of those due later.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        ttft_s: float | None = None,
        max_chunk: int | None = None,
        victim_rule: str = "least_urgent",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        if ttft_s is not None:
            checks.positive("ttft_s", ttft_s)
        self.ttft_s = ttft_s

    def deadline(self, request: Request) -> float:
        """When its first token is due; infinity without a target."""
        slo = request.slo
        ttft_s = self.ttft_s if slo is None or slo.ttft_s is None else slo.ttft_s
        return math.inf if ttft_s is None else request.arrival_time + ttft_s

    def order(self, request: Request, now: float) -> tuple[float, float]:
        """Deadline, then arrival."""
        return self.deadline(request), request.arrival_time

    def displaces(self, candidate: Request, request: Request) -> bool:
        """Only one due earlier does."""
        return self.deadline(request) > self.deadline(candidate)
