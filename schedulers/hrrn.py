"""HRRN: short requests first, but waiting counts."""

from __future__ import annotations

from typing import Any

from schedulers.request import Request
from schedulers.sjf import SJF


class HRRN(SJF):
    """The highest response ratio next: (time waited + time of service) / time of service, without preemption.

    Brinch Hansen, "An Analysis of Response Ratio Scheduling", IFIP Congress 1971. Service is measured in predicted
    output tokens, so that the ratio orders as time waited per token to come: short requests go first, and a long one
    that has waited long enough does too, so that nobody starves.
    """

    order_changes = True

    def order(self, request: Request, now: float) -> tuple[float, float]:
        """Seconds waited per token to come, the most first; then arrival."""
        waited_s = now - request.arrival_time
        return -waited_s / max(self.predictor.predict(request), 1.0), request.arrival_time

    def urgency(self, request: Request) -> Any:
        """Between running requests, whom the ratio no longer concerns: the earlier arrival."""
        return request.arrival_time
