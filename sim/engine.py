"""A simulated engine: a SimPy process that drives a scheduler and lets the cost of each step pass as simulated time."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol

import simpy
from simpy.events import NORMAL, EventPriority

from schedulers import Request, RequestRecord, SchedulerContract, SchedulerOutput, StepRecord
from schedulers.decisions import Arrival, StepDecisions
from schedulers.errors import blaming
from schedulers.invariants import StepChecker
from sim.costs import CostModel, arrival_s
from sim.tokens import TokenSource, check_length


class Late(simpy.Event):
    """Happens after a delay, after everything else of that instant: whoever arrives or leaves then does so first."""

    PRIORITY = EventPriority(NORMAL + 1)

    def __init__(self, env: simpy.Environment, delay_s: float) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, self.PRIORITY, delay_s)


class SimEngine:
    """One engine in a SimPy environment.

    It makes the same three calls in the same order as the real EngineCore: drain arrivals, `schedule`, run the step
    (here: wait for as long as the cost model says), `update_from_output`. While no request is unfinished it sleeps on
    an event. A request that arrives during a step, or in the instant it ends, is seen by the next.

    Args:
        env: the environment whose clock it lives by; seconds.
        scheduler: decides the steps; told nothing of being simulated.
        cost: prices them.
        tokens: samples; knows the true output lengths.
        on_step: called with the record of every step, at its end.
        on_finish: called with the record of every request that ended.
        on_decisions: called with the decisions of every step, at its end, if they are wanted.
        drain: called before every step, to submit and abort what comes between steps, as the real engine drains its
            mailbox; says how many seconds later the step starts. None: requests come when they come, and steps follow
            each other at once.
        replica: its place among the engines of a cluster, for the records.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduler: SchedulerContract,
        cost: CostModel,
        tokens: TokenSource,
        on_step: Callable[[StepRecord], Any],
        on_finish: Callable[[RequestRecord], Any],
        *,
        on_decisions: Callable[[StepDecisions], Any] | None = None,
        drain: Callable[[], float] | None = None,
        replica: int = 0,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self._cost = cost
        self._tokens = tokens
        self._on_step = on_step
        self._on_finish = on_finish
        self._on_decisions = on_decisions
        self._drain = drain
        self._replica = replica
        #: What came since the last step, while decisions are wanted.
        self._news: list[Arrival | str] = []
        self._live: dict[str, Request] = {}
        #: Those that came while a step runs: the scheduler is told when it has learned of that, as the real one is.
        self._arrived: list[Request] = []
        self._in_step = False
        self._last_end = -math.inf
        #: Seconds that requests spent in the system since the last step's end, counted up to `_counted_to`.
        self._request_s = 0.0
        self._counted_to = env.now
        self._work = env.event()
        self.process = env.process(self._run())

    @property
    def num_unfinished(self) -> int:
        """Requests that arrived and have not ended."""
        return len(self._live)

    def submit(self, request: Request, num_output_tokens: int) -> None:
        """A request arrives now; its output will have `num_output_tokens` tokens unless a limit cuts it.

        Raises:
            RequestRefused: it can never be served. Of a request that comes during a step, this ends the run with it.
        """
        check_length(request.request_id, num_output_tokens)
        if self._in_step and request.request_id not in self._live:
            self._arrived.append(request)
        else:
            self.scheduler.add_request(request)
        self._tokens.expect(request.request_id, num_output_tokens)
        self._count_time()
        self._request_s += self.env.now - request.arrival_time
        self._live[request.request_id] = request
        if self._on_decisions is not None:
            self._news.append(Arrival.of(request))
        if not self._work.triggered:
            self._work.succeed()

    def abort(self, request_id: str) -> None:
        """A client cancels a request; nothing happens if it has ended."""
        self._hand_over()
        request = self.scheduler.abort_request(request_id, self.env.now)
        if request is not None:
            if self._on_decisions is not None:
                self._news.append(request_id)
            self._end(request)

    def _run(self) -> Generator[simpy.Event, None, None]:
        env, scheduler, cost, tokens = self.env, self.scheduler, self._cost, self._tokens
        checker = StepChecker(scheduler)
        step = 0
        while True:
            if self._drain is not None:
                yield Late(env, self._drain())
            while not self._live:
                self._work = env.event()
                yield self._work
                yield Late(env, 0.0)
            start = env.now
            with blaming(scheduler, step + 1):
                output = scheduler.schedule(start)
            step = output.step
            news, self._news = self._news, []
            checker.check(output, self._live)
            result = tokens.sample(output)
            num_running, num_waiting, kv_usage = scheduler.num_running, scheduler.num_waiting, scheduler.kv_cache.usage
            self._in_step = True
            yield Late(env, cost.step_time(output.shape, start - self._last_end))
            now = self._last_end = env.now
            with blaming(scheduler, step):
                events = scheduler.update_from_output(output, result, now)
            self._in_step = False
            self._hand_over()
            self._record(output, start, num_running, num_waiting, kv_usage)
            if self._on_decisions is not None:
                self._on_decisions(StepDecisions.of(output, result, news, start, now))
            for request in events.finished:
                self._end(request)

    def _record(
        self, output: SchedulerOutput, start: float, num_running: int, num_waiting: int, kv_usage: float
    ) -> None:
        """Hand on the record of a step that ends now."""
        now = self.env.now
        request_s = self._request_s + len(self._live) * (now - self._counted_to)
        self._request_s, self._counted_to = 0.0, now
        self._on_step(StepRecord.of(output, start, now, num_running, num_waiting, kv_usage, self._replica, request_s))

    def _end(self, request: Request) -> None:
        self._count_time()
        del self._live[request.request_id]
        self._tokens.forget(request.request_id)
        self._on_finish(RequestRecord.of(request, self._replica))

    def _hand_over(self) -> None:
        """Tell the scheduler of those that came during the step."""
        arrived, self._arrived = self._arrived, []
        for request in arrived:
            self.scheduler.add_request(request)

    def _count_time(self) -> None:
        """Account for the time since the number of live requests last changed."""
        now = self.env.now
        self._request_s += len(self._live) * (now - self._counted_to)
        self._counted_to = now


class Taker(Protocol):
    """What requests can be sent to: an engine, or a cluster of them."""

    env: simpy.Environment

    def submit(self, request: Request, num_output_tokens: int) -> None:
        """A request arrives now."""


def arrive(
    taker: Taker, arrivals: Iterable[tuple[Request, int]], delay_s: float = 0.0
) -> Generator[simpy.Event, None, None]:
    """A SimPy process that submits requests, each with its true output length, at their arrival times (ascending).

    Each comes `delay_s` later than it arrived: that long its way to the engine takes.
    """
    env = taker.env
    for request, num_output_tokens in arrivals:
        submit_s = request.arrival_time + delay_s
        if submit_s > env.now:
            yield env.timeout(submit_s - env.now)
        taker.submit(request, num_output_tokens)


def simulate(
    arrivals: Iterable[tuple[Request, int]],
    scheduler: SchedulerContract,
    cost: CostModel,
    on_step: Callable[[StepRecord], Any],
    on_finish: Callable[[RequestRecord], Any],
    on_decisions: Callable[[StepDecisions], Any] | None = None,
    follow_ups: Callable[[RequestRecord], Sequence[tuple[Request, int]]] = lambda _: (),
) -> SimEngine:
    """Run one engine over a workload until every request has ended.

    Args:
        arrivals: requests that come whatever happens, with their true output lengths, by arrival.
        follow_ups: asked of every request that ended for those that follow it, such as the next turn of its session;
            also by arrival. One that comes to the engine in that very instant is seen by the step after the one that
            starts then, as its client must learn of the end first.

    Raises:
        RequestRefused: a request can never be served.
        SchedulerError: the policy failed; the message names the step.
    """
    env, way_s = simpy.Environment(), arrival_s(cost)

    def ended(record: RequestRecord) -> None:
        on_finish(record)
        if following := follow_ups(record):
            env.process(arrive(engine, following, way_s))

    engine = SimEngine(env, scheduler, cost, TokenSource(), on_step, ended, on_decisions=on_decisions)
    env.process(arrive(engine, arrivals, way_s))
    env.run()
    return engine
