"""One scenario, lived through under a policy, with every rule checked."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from schedulers.conformance.rules import BrokenRule, Rule
from schedulers.conformance.scenario import Job, Scenario
from schedulers.conformance.world import CheckedWorld
from schedulers.errors import InputError, TwinserveError
from schedulers.scheduler import Limits, SchedulerContract

#: Seconds of this process's computing that a policy may take for one call; in a tiny scenario it takes milliseconds.
PATIENCE_S = 0.3

_KIT = Path(__file__).parent


class Policy(Protocol):
    """What makes a scheduler: its class, or a `functools.partial` of it with its parameters."""

    def __call__(self, limits: Limits, *, seed: int) -> SchedulerContract:
        """A fresh scheduler."""


class Loops(BaseException):
    """Breaks into a policy that does not come back; past its own `except Exception`."""


def play(policy: Policy, scenario: Scenario) -> CheckedWorld:
    """Let `scenario` happen to a fresh scheduler of `policy`, to its end.

    Raises:
        BrokenRule: the first rule that did not hold; all that a policy raises counts as one.
        InputError: the policy cannot be made with these limits, and says so.
    """
    with answering("is made", may_refuse=True):
        scheduler = policy(scenario.limits, seed=scenario.seed)
    world = CheckedWorld(scheduler, scenario.limits)
    try:
        _live_through(scenario, world)
    except BrokenRule as broken:
        broken.briefs = [str(brief) for brief in world.briefs]
        raise
    return world


def _live_through(scenario: Scenario, world: CheckedWorld) -> None:
    """Let everything happen when it is due, and steps follow each other while anybody is live."""
    events = _events(scenario)
    due = next(events, None)

    def happen(until_s: float) -> None:
        nonlocal due
        while due is not None and due[0] <= until_s:
            time_s, job, arrives = due
            world.now = max(world.now, time_s)
            if arrives:
                with answering(f"is told of {job.name}"):
                    if world.arrive(job.request(world.now, scenario.limits.block_size), job.prompt):
                        world.arrive(job.request(world.now, scenario.limits.block_size), job.prompt)  # its id is taken
            elif job.name in world.live:
                with answering(f"is told to cancel {job.name}"):
                    world.abort(job.name)
            due = next(events, None)

    while due is not None or world.live:
        happen(world.now if world.live or due is None else max(world.now, due[0]))
        if not world.live:
            continue
        start_s = world.now
        with answering(f"composes step {len(world.briefs) + 1}"):
            world.dispatch()
        happen(start_s + 0.5)
        with answering(f"learns of step {len(world.briefs)}"):
            world.learn(start_s + 1.0)
        world.check_served(world.most_steps)
    with answering("has nobody left"):
        world.abort("nobody")
        world.check_idle()


def _events(scenario: Scenario) -> Iterator[tuple[float, Job, bool]]:
    """(time, job, whether it arrives or is cancelled), in the order in which they happen."""
    arrivals = [(job.arrives_s, job, True) for job in scenario.jobs]
    ends = [(max(job.aborted_s, job.arrives_s), job, False) for job in scenario.jobs if job.aborted_s is not None]
    return iter(sorted(arrivals + ends, key=lambda event: (event[0], not event[2])))


@contextmanager
def answering(doing: str, *, may_refuse: bool = False) -> Iterator[None]:
    """Turn what a policy raises while it is `doing` something, and a call that takes too long, into `BrokenRule`."""
    try:
        with _patience():
            yield
    except BrokenRule:
        raise
    except TwinserveError as error:
        if may_refuse and isinstance(error, InputError):
            raise
        raise BrokenRule(Rule.ANSWERS, str(error)) from error
    except SystemExit as stop:
        raise BrokenRule(Rule.ANSWERS, f"the policy {doing} and ends the program with {stop.code!r}") from stop
    except Loops as loop:
        raise BrokenRule(Rule.ANSWERS, f"the policy {doing} and has computed for {PATIENCE_S:g} s {loop}") from loop
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise BrokenRule(
            Rule.ANSWERS,
            f"the policy {doing} and raises {type(error).__name__}: {error} ({where.filename}, line {where.lineno})",
        ) from error


@contextmanager
def _patience() -> Iterator[None]:
    """Raise `Loops` in what takes longer than `PATIENCE_S` of computing; only the main thread can be broken into."""

    def break_in(_: int, frame: FrameType | None) -> None:
        if policy := _frame_of_policy(frame):
            raise Loops(f"(in {policy.f_code.co_filename}, line {policy.f_lineno})")

    try:
        former: Any = signal.signal(signal.SIGVTALRM, break_in)
    except ValueError:  # this is another thread
        yield
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_S, PATIENCE_S)  # again, for those who catch all
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, former)


def _frame_of_policy(innermost: FrameType | None) -> FrameType | None:
    """The policy's own function that is being computed, whatever it has called; the innermost if it is one of ours."""
    found = frame = innermost
    while frame is not None and _KIT not in (folders := Path(frame.f_code.co_filename).parents):
        if _KIT.parent not in folders:
            found = frame
        frame = frame.f_back
    return found
