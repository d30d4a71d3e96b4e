"""EDF: the earliest deadline first."""

from __future__ import annotations

import math

from schedulers import checks
from schedulers.batch import Batch
from schedulers.displacing import Displacing
from schedulers.request import Request
from schedulers.scheduler import Limits


class EDF(Displacing):
    """The step's budget goes to whoever's next token is due first.

    Earliest deadline first (Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time
    Environment", JACM 1973) meets every set of deadlines that one server can meet. The first token is due at arrival +
    TTFT target, each further one TPOT target later, wherever the one before really came: so a request that is ahead of
    its deadlines lets urgent prompts pass, decodes included. Who has no target goes last, by arrival.

    When slots or blocks are short, a waiting request displaces one whose *first* token was due later than its own:
    an order that stands, so that two requests never take turns at recomputing themselves.

    Args:
        limits: what the engine can hold.
        ttft_s: target of requests that have none of their own, seconds; None: they have none.
        tpot_s: likewise.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who goes, of those with a later deadline.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        max_chunk: int | None = None,
        victim_rule: str = "least_urgent",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        for name, target in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
            if target is not None:
                checks.positive(name, target)
        self.ttft_s = ttft_s
        self.tpot_s = tpot_s

    def first_deadline(self, request: Request) -> float:
        """When its first token is due; infinity without a target."""
        slo = request.slo
        ttft_s = self.ttft_s if slo is None or slo.ttft_s is None else slo.ttft_s
        return math.inf if ttft_s is None else request.arrival_time + ttft_s

    def deadline(self, request: Request) -> float:
        """When its next token is due; without a TPOT target, all are due when the first is."""
        slo = request.slo
        tpot_s = self.tpot_s if slo is None or slo.tpot_s is None else slo.tpot_s
        return self.first_deadline(request) + request.num_output_tokens * (tpot_s or 0.0)

    def order(self, request: Request, now: float) -> tuple[float, float]:
        """Deadline of the next token, then arrival."""
        return self.deadline(request), request.arrival_time

    def urgency(self, request: Request) -> tuple[float, float]:
        """Deadline of the first token, then arrival."""
        return self.first_deadline(request), request.arrival_time

    def displaces(self, candidate: Request, request: Request) -> bool:
        """Whose first token was due earlier does."""
        return self.first_deadline(request) > self.first_deadline(candidate)

    def compose(self, batch: Batch, now: float) -> None:
        """Everybody by deadline, decodes too."""
        self.serve(batch.running, batch)
