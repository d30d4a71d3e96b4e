"""SRPT: the shortest remaining output first, with preemption."""

from __future__ import annotations

from schedulers.displacing import Displacing
from schedulers.predictors import make_predictor
from schedulers.request import Request
from schedulers.scheduler import Limits


class SRPT(Displacing):
    """Whoever is predicted to have the fewest tokens left goes first, and displaces those who have more.

    Shortest remaining processing time has the least mean time in system of all disciplines on one server (Schrage, "A
    proof of the optimality of the shortest remaining processing time discipline", Operations Research 1968); for LLM
    serving with predictions: Shahout et al., "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (TRAIL), ICLR
    2025. A request that has outlived its prediction has nothing left, as far as is known, and is not displaced.

    Args:
        limits: what the engine can hold.
        predictor: whose word on lengths counts, as for `SJF`.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who goes, of those who have more left.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        predictor: str = "given",
        max_chunk: int | None = None,
        victim_rule: str = "least_urgent",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        self.predictor = make_predictor(predictor)

    def order(self, request: Request, now: float) -> tuple[float, float]:
        """Its predicted output that is still to come, then arrival."""
        return self.num_left(request), request.arrival_time

    def num_left(self, request: Request) -> float:
        """Tokens it is predicted to produce yet."""
        return max(self.predictor.predict(request) - request.num_output_tokens, 0.0)

    def displaces(self, candidate: Request, request: Request) -> bool:
        """Only a request with fewer tokens left does."""
        return self.num_left(request) > self.num_left(candidate)

    def ended(self, request: Request) -> None:
        """The predictor may learn from it."""
        self.predictor.ended(request)
