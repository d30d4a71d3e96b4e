"""HRRN: short requests first, but waiting counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop

from schedulers.batch import Batch
from schedulers.request import Request
from schedulers.sjf import SJF


class HRRN(SJF):
    """The highest response ratio next: (time waited + time of service) / time of service, without preemption.

    Brinch Hansen, "An Analysis of Response Ratio Scheduling", IFIP Congress 1971. Service is measured in predicted
    output tokens, so that the ratio orders as time waited per token to come: short requests go first, and a long one
    that has waited long enough does too.

    Ratios change with time, each at its own pace, so they are computed anew in every step in which somebody can start.
    """

    def candidates(self, batch: Batch, now: float) -> Iterable[Request]:
        """Whoever has waited the longest for each token to come; then the earlier arrival."""
        return self._by_ratio(batch.waiting, now) if batch.has_room else ()

    def _by_ratio(self, waiting: Iterable[Request], now: float) -> Iterator[Request]:
        requests = list(waiting)
        line = [
            ((request.arrival_time - now) / max(self.predictor.predict(request), 1.0), request.arrival_time, place)
            for place, request in enumerate(requests)
        ]
        heapify(line)  # few of many start, so there is no need to sort all
        while line:
            yield requests[heappop(line)[-1]]
