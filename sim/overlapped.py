"""An engine that decides each step while the one before runs, as vLLM does with asynchronous scheduling."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Any

import simpy

from schedulers import Request, RequestRecord, SchedulerContract, StepRecord
from schedulers.errors import blaming
from schedulers.invariants import StepChecker
from schedulers.step import SchedulerOutput, StepResult
from sim.costs import CostModel, arrival_s
from sim.engine import Late, SimEngine, arrive
from sim.tokens import TokenSource


class OverlappedEngine(SimEngine):
    """One engine whose scheduler is a step ahead of its device.

    The next step is decided in the moment in which the current one starts, from what is then known and what the current
    one is bound to bring: a token for each request that samples, whichever it is. What follows for requests:

    - an arrival, seen when the current step ends, is in the step after the next one at the earliest;
    - a request that gets its last token in the current step is not in the next one, but keeps its slot and blocks until
      the current one has ended, so that nobody has them before the step after the next.

    So it is in vLLM where the length of an output is known, being limited by `max_tokens`. An output that ends by EOS
    is seen too late there, and computes a token more, in vain; that token is not simulated. Nor are cancellations.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: SchedulerContract,
        cost: CostModel,
        tokens: TokenSource,
        on_step: Callable[[StepRecord], Any],
        on_finish: Callable[[RequestRecord], Any],
    ) -> None:
        """As `SimEngine`, of which it takes what a lone engine in an open loop needs."""
        super().__init__(env, scheduler, cost, tokens, on_step, on_finish)

    def abort(self, request_id: str) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("an overlapped engine simulates no cancellations")

    def _run(self) -> Generator[simpy.Event, None, None]:
        env, scheduler = self.env, self.scheduler
        checker = StepChecker(scheduler)
        ahead: SchedulerOutput | None = None
        while True:
            while not self._live:
                self._work = env.event()
                yield self._work
                yield Late(env, 0.0)
            start = env.now
            output = ahead or self._schedule()
            if ahead is None:
                checker.check(output, self._live)
            state = scheduler.num_running, scheduler.num_waiting, scheduler.kv_cache.usage
            end = start + self._cost.step_time(output.shape, start - self._last_end)
            result = self._tokens.sample(output)
            going_on, ending = self._parted(output, result)
            with blaming(scheduler, output.step):
                scheduler.update_from_output(going_on, result, end)
            ahead = self._schedule()
            if ahead.num_scheduled_tokens:
                checker.check(ahead, self._live)
            else:  # whoever waits can go on only once this step has ended
                ahead = None
            yield Late(env, end - start)
            self._last_end = env.now
            with blaming(scheduler, output.step):
                events = scheduler.update_from_output(ending, result, env.now)
            self._record(output, start, *state)
            for request in events.finished:
                self._end(request)

    def _schedule(self) -> SchedulerOutput:
        with blaming(self.scheduler, 0):
            return self.scheduler.schedule(self.env.now)

    def _parted(self, output: SchedulerOutput, result: StepResult) -> tuple[SchedulerOutput, SchedulerOutput]:
        """A step's requests that go on after it, and those that end with it: each part as a step of its own."""
        ending = {
            request_id
            for request_id, tokens in result.sampled_token_ids.items()
            if tokens[-1] in (request := self._live[request_id]).stop_ids
            or request.num_tokens + len(tokens) >= request.token_limit
        }
        scheduled = output.num_scheduled_tokens
        if not ending:
            return output, replace(output, num_scheduled_tokens={})
        return (
            replace(output, num_scheduled_tokens={key: n for key, n in scheduled.items() if key not in ending}),
            replace(output, num_scheduled_tokens={key: n for key, n in scheduled.items() if key in ending}),
        )


def simulate_overlapped(
    arrivals: Iterable[tuple[Request, int]],
    scheduler: SchedulerContract,
    cost: CostModel,
    on_step: Callable[[StepRecord], Any],
    on_finish: Callable[[RequestRecord], Any],
) -> OverlappedEngine:
    """Run one overlapped engine over an open-loop workload until every request has ended.

    Raises:
        RequestRefused: a request can never be served.
        SchedulerError: the policy failed.
    """
    env = simpy.Environment()
    engine = OverlappedEngine(env, scheduler, cost, TokenSource(), on_step, on_finish)
    env.process(arrive(engine, arrivals, arrival_s(cost)))
    env.run()
    return engine
