"""Policies that try what `Batch` lets a policy do, one of them without any sense."""

from __future__ import annotations

import random
from collections.abc import Sequence

from schedulers import Batch, Limits, Request, Scheduler, Status


class Chaotic(Scheduler):
    """Schedules and preempts whomever it draws, also those it scheduled a moment ago; yields to and for anybody.

    Args:
        limits: what the engine can hold.
        seed: of the draws.
        calm: go back to the default composition, so that everybody is served in the end.
    """

    order_changes = True

    def __init__(self, limits: Limits, *, seed: int = 0, calm: bool = False) -> None:
        super().__init__(limits, seed=seed)
        self.calm = calm
        self._random = random.Random(seed)

    def order(self, request: Request, now: float) -> float:
        """Another order each time it is asked."""
        return request.arrival_time if self.calm else self._random.random()

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        """Anybody, sometimes nobody, sometimes the candidate itself."""
        if self.calm:
            return super().victim(running, candidate)
        return self._random.choice([*running, *running, None])

    def compose(self, batch: Batch, now: float) -> None:
        """Draw operations, more than can succeed."""
        if self.calm:
            super().compose(batch, now)
            return
        for _ in range(self._random.randrange(12)):
            running, waiting = batch.running, list(batch.waiting)
            if running and self._random.random() < 0.25:
                batch.preempt(self._random.choice(running))
            elif running or waiting:
                request = self._random.choice([*running, *waiting])
                max_tokens = self._random.choice([None, None, 0, 1, 3, 10])
                whole = max_tokens is None and self._random.random() < 0.5
                scheduled = batch.schedule(request, max_tokens, whole=whole)
                assert scheduled == 0 or request.status is Status.RUNNING
                left = request.num_remaining_tokens - scheduled
                assert not (whole and scheduled and left) or scheduled == self.limits.token_budget


class Displacing(Scheduler):
    """Most urgent first; arrivals displace whoever is less urgent, also in the step that both are in."""

    def order(self, request: Request, now: float) -> tuple[int, float]:
        """Priority, then arrival."""
        return request.priority, request.arrival_time

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        """The least urgent."""
        least = max(reversed(running), key=lambda request: (request.priority, request.arrival_time))
        return least if candidate.status is Status.RUNNING or least.priority > candidate.priority else None

    def compose(self, batch: Batch, now: float) -> None:
        """Every second step in whole prompts, every other as much as fits."""
        for request in batch.running:
            batch.schedule(request)
        for request in batch.waiting:
            if not batch.schedule(request, whole=batch.step % 2 == 0):
                break
