"""Aging: priorities that waiting makes up for."""

from __future__ import annotations

from schedulers import checks
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.request import Request
from schedulers.scheduler import Limits


class Aging(ChunkedPrefill):
    """Most urgent first, where each `class_s` seconds of waiting count as much as one class of priority.

    A delay-dependent discipline (Kleinrock, "A delay dependent queue discipline", Naval Research Logistics Quarterly
    1964) without preemption: a request of class p that came at time t is served before all of class p + 1 that came
    after t - class_s. As all age at the same pace, their order never changes, and the queue need not be sorted anew.

    Args:
        limits: what the engine can hold.
        class_s: seconds of waiting worth one class, above 0.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        class_s: float = 10.0,
        max_chunk: int | None = None,
        victim_rule: str = "last_admitted",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        checks.positive("class_s", class_s)
        self.class_s = class_s

    def order(self, request: Request, now: float) -> float:
        """When a request of class 0 would have come that is as urgent as this one."""
        return request.arrival_time + request.priority * self.class_s
