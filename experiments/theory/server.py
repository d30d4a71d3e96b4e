"""An engine as the server of queueing theory: one request at a time, whose length is its service time.

A request's prompt is as many tokens long as its service takes; a token costs the same wherever it stands, and the one
output token comes with the last. So `PricedByLength` prices a step with the time that it serves, and the simulator's
engine, scheduler, batch and KV cache do all that they do in any other run.

A step cannot be interrupted. Where theory does not interrupt either, a request is computed in one step. Where it does
(preemptive-resume), `Interruptible` ends a step when the next request arrives, which it knows in advance; and with
blocks of one token, the prefix cache keeps what a preempted request had computed, so that it resumes where it was. That
is exact to a token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from schedulers import SRPT, BatchShape, Limits, Priority, Request
from schedulers.batch import Batch
from schedulers.displacing import Displacing


class PricedByLength:
    """Every token takes `token_s` seconds."""

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds of service in the step."""
        return batch.num_tokens * self._token_s

    def warnings(self) -> list[str]:
        """None."""
        return []

    def describe(self) -> str:
        """The price of a token."""
        return f"{self._token_s:g} s a token"


class NextArrival:
    """Knows when requests arrive, and is asked as time goes on."""

    def __init__(self, arrivals_s: Iterator[float]) -> None:
        self._coming = arrivals_s
        self._next_s = next(arrivals_s, math.inf)

    def after(self, now: float) -> float:
        """The first arrival after `now`; infinite if there is none."""
        while self._next_s <= now:
            self._next_s = next(self._coming, math.inf)
        return self._next_s


class Interruptible(Displacing):
    """A preemptive discipline whose steps end with the next arrival."""

    def __init__(self, limits: Limits, next_arrival: NextArrival, token_s: float) -> None:
        super().__init__(limits)
        self._next_arrival = next_arrival
        self._token_s = token_s

    def chunk(self, request: Request, batch: Batch) -> int:
        """Tokens until the next arrival, the one in progress then included."""
        left_s = self._next_arrival.after(batch.now) - batch.now
        return batch.budget_left if left_s == math.inf else max(math.ceil(left_s / self._token_s), 1)


class PreemptivePriority(Interruptible, Priority):
    """`Priority`, able to interrupt."""


class PreemptiveSRPT(Interruptible, SRPT):
    """`SRPT`, able to interrupt; what is left of a job are the tokens of its prompt."""

    def num_left(self, request: Request) -> float:
        """Tokens to compute: what is not in its blocks, or, while it has none, in the cache."""
        if request.block_ids:
            return request.num_remaining_tokens
        return request.num_tokens - self.kv_cache.num_cached_tokens(request)
