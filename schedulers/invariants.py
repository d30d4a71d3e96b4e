"""What every step must satisfy, whoever decided it. A world checks each step as it comes."""

from __future__ import annotations

from collections.abc import Collection

from schedulers.errors import SchedulerError
from schedulers.request import Request
from schedulers.scheduler import SchedulerContract
from schedulers.step import SchedulerOutput


class StepChecker:
    """Watches the steps of one scheduler, at constant cost a step.

    Policies that go through `Batch` cannot exceed the limits; schedulers that implement the whole contract can, and any
    policy can fail to make progress.
    """

    #: Live requests' tokens may be computed this many times over without a single one produced.
    FUTILE_ROUNDS = 10

    def __init__(self, scheduler: SchedulerContract) -> None:
        """Watch `scheduler`."""
        self._scheduler = scheduler
        self._name = type(scheduler).__name__
        self._futile_tokens = 0
        self._most_live_tokens = 0

    def check(self, output: SchedulerOutput, live: Collection[Request]) -> None:
        """Check a step just decided; `live` are all unfinished requests.

        Raises:
            SchedulerError: naming the step and what it violates.
        """
        limits = self._scheduler.limits
        num_tokens = output.total_num_scheduled_tokens
        problem = ""
        if not output.num_scheduled_tokens:
            problem = (
                f"schedules nothing although {self._scheduler.num_running} requests run and "
                f"{self._scheduler.num_waiting} wait; each step must make progress"
            )
        elif num_tokens > limits.token_budget:
            problem = f"schedules {num_tokens} tokens; the token budget is {limits.token_budget}"
        elif max(len(output.num_scheduled_tokens), self._scheduler.num_running) > limits.max_num_seqs:
            num_seqs = max(len(output.num_scheduled_tokens), self._scheduler.num_running)
            problem = f"holds {num_seqs} requests; the sequence limit is {limits.max_num_seqs}"
        elif min(output.num_scheduled_tokens.values()) < 1:
            problem = "schedules a request for less than one token"
        elif output.sampled_ids:
            self._futile_tokens = self._most_live_tokens = 0
        else:
            self._futile_tokens += num_tokens
            self._most_live_tokens = max(self._most_live_tokens, sum(request.num_tokens for request in live))
            if self._futile_tokens > self.FUTILE_ROUNDS * self._most_live_tokens:
                problem = f"makes no progress: {self._futile_tokens} tokens were computed since a request last produced one"
        if problem:
            raise SchedulerError(f"step {output.step}: {self._name} {problem}")
