"""LPM: the longest cached prefix first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from schedulers import checks
from schedulers.batch import Batch
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.request import Request
from schedulers.scheduler import Limits


class LPM(ChunkedPrefill):
    """Whoever finds most of its tokens in the prefix cache starts first, before they are evicted.

    Longest prefix match: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS
    2024, where it is shown to reach the optimal hit rate when all requests wait at once (Theorem 3.1). Alone it starves
    whoever shares nothing; so who has waited `patience_s` goes before all others, by arrival.

    Looking everybody up in each step would cost more than it saves: the `most_compared` earliest arrivals are (SGLang
    goes back to FCFS beyond 128 waiting), and only while somebody could start.

    Args:
        limits: what the engine can hold.
        patience_s: seconds of waiting after which a request goes first; None: never.
        most_compared: waiting requests that are looked up in a step.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        patience_s: float | None = 10.0,
        most_compared: int = 128,
        max_chunk: int | None = None,
        victim_rule: str = "last_admitted",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        if patience_s is not None:
            checks.positive("patience_s", patience_s)
        checks.count("most_compared", most_compared)
        self.patience_s = patience_s
        self.most_compared = most_compared

    def candidates(self, batch: Batch, now: float) -> Iterable[Request]:
        """Who waited too long, by arrival; then the earliest arrivals by what is cached of them; then the rest."""
        return self._candidates(batch, now) if batch.has_room else ()

    def _candidates(self, batch: Batch, now: float) -> Iterator[Request]:
        first = list(islice(batch.waiting, self.most_compared))
        patient = [request for request in first if not self._waited_too_long(request, now)]
        yield from first[: len(first) - len(patient)]
        yield from sorted(patient, key=lambda request: (-batch.num_cached_tokens(request), request.arrival_time))
        yield from batch.waiting

    def _waited_too_long(self, request: Request, now: float) -> bool:
        return self.patience_s is not None and now - request.arrival_time >= self.patience_s
