"""What every step must satisfy, whoever decided it. A world checks each step as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schedulers.errors import SchedulerError
from schedulers.request import Request
from schedulers.scheduler import SchedulerContract
from schedulers.step import SchedulerOutput


class StepChecker:
    """Watches the steps of one scheduler, at a cost far below a step's own.

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
        self._witness = ""

    def check(self, output: SchedulerOutput, live: Mapping[str, Request]) -> None:
        """Check a step just decided; `live` are all unfinished requests by id.

        Raises:
            SchedulerError: naming the step and what it violates.
        """
        limits, scheduled = self._scheduler.limits, output.num_scheduled_tokens
        num_tokens = max(sum(scheduled.values()), output.shape.num_tokens)
        num_seqs = max(len(scheduled), self._scheduler.num_running)
        problem = ""
        if not scheduled:
            problem = f"schedules nothing although {_names(live)} wait to go on; each step must make progress"
        elif min(scheduled.values()) < 1:
            problem = "schedules a request for less than one token"
        elif num_tokens > limits.token_budget:
            problem = f"schedules {num_tokens} tokens; the token budget is {limits.token_budget}"
        elif num_seqs > limits.max_num_seqs:
            problem = f"holds {num_seqs} requests; the sequence limit is {limits.max_num_seqs}"
        elif not scheduled.keys() <= live.keys():
            problem = f"schedules {_names(scheduled.keys() - live.keys())}, which nobody asked for"
        elif not scheduled.keys() >= set(output.sampled_ids):
            problem = f"samples for {_names(set(output.sampled_ids) - scheduled.keys())}, which it does not schedule"
        elif self._is_futile(num_tokens, output, live):
            problem = f"makes no progress: {self._futile_tokens} tokens were computed since a request last produced one"
        if problem:
            raise SchedulerError(f"step {output.step}: {self._name} {problem}")

    def _is_futile(self, num_tokens: int, output: SchedulerOutput, live: Mapping[str, Request]) -> bool:
        """Whether all work since the last token produced, or since one it was spent on left, was for nothing."""
        if output.sampled_ids or self._witness not in live:
            self._witness = next(iter(output.num_scheduled_tokens))
            self._futile_tokens = self._most_live_tokens = 0
            return False
        self._futile_tokens += num_tokens
        self._most_live_tokens = max(self._most_live_tokens, sum(request.num_tokens for request in live.values()))
        return self._futile_tokens > self.FUTILE_ROUNDS * self._most_live_tokens


def _names(request_ids: Iterable[str]) -> str:
    """Up to five ids, and how many more there are."""
    names = [repr(request_id) for request_id in sorted(request_ids)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
