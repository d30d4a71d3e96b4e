"""SJF: the shortest output first, without preemption."""

from __future__ import annotations

from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.predictors import make_predictor
from schedulers.request import Request
from schedulers.scheduler import Limits


class SJF(ChunkedPrefill):
    """Whoever is predicted to produce the fewest tokens starts first; whoever has started goes on.

    Shortest job first (Cox and Smith, Queues, 1961), with a job's size being its output, which decides how many steps
    it takes: Qiu et al., "Efficient Interactive LLM Serving with Proxy Model-based Sequence Length Prediction" (SSJF),
    AIOps 2024. Long requests may starve; `HRRN` is the same with patience rewarded.

    Args:
        limits: what the engine can hold.
        predictor: whose word on lengths counts: "given", `request.predicted_output_tokens`; "client_mean", the mean of
            what the client's requests have produced so far.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        predictor: str = "given",
        max_chunk: int | None = None,
        victim_rule: str = "last_admitted",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        self.predictor = make_predictor(predictor)

    def order(self, request: Request, now: float) -> tuple[float, float]:
        """Its predicted output, then arrival."""
        return self.predictor.predict(request), request.arrival_time

    def ended(self, request: Request) -> None:
        """The predictor may learn from it."""
        self.predictor.ended(request)
