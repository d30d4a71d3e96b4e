"""The queues that are compared: their arrivals and services, the discipline that serves them, and the exact answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from experiments.theory import formulas
from experiments.theory.formulas import Traffic
from experiments.theory.server import NextArrival, PreemptivePriority, PreemptiveSRPT, PricedByLength
from schedulers import (
    SJF,
    ChunkedPrefill,
    Limits,
    Priority,
    Request,
    RequestRecord,
    Scheduler,
    StepRecord,
    TwinserveError,
)
from sim.cluster import simulate_cluster
from sim.routing import CentralQueue, RoundRobin, Router

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Tokens in a second of service, which is the mean service time or near it. Preemptive disciplines pay for each token.
FINE, COARSE = 10_000, 200


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs in order of arrival: when they come, how long they take (seconds), and which class they are of."""

    arrivals_s: Floats
    services_s: Floats
    classes: Ints


#: Draws jobs for a load, as many as asked.
Draw = Callable[[Generator, float, int], Jobs]


def _first_come(limits: Limits, _: Jobs) -> Scheduler:
    return ChunkedPrefill(limits)


@dataclass(frozen=True, slots=True)
class Case:
    """A queue with known means.

    Attributes:
        name: in Kendall's notation, where it has one.
        draw: jobs for a load, as many as asked.
        exact: for a load, the mean of each class.
        discipline: makes the scheduler of a server, given its limits and what it may know of the jobs. By default first
            come, first served.
        in_system: whether `exact` is a time in the system; else a wait for the first service.
        preemptive: whether service is interrupted.
        servers: engines behind one queue.
        effort: how many times as many jobs this queue is given as others, so that all are about as precise.
        classes: the names of its classes, most urgent first.
    """

    name: str
    draw: Draw
    exact: Callable[[float], list[float]]
    discipline: Callable[[Limits, Jobs], Scheduler] = _first_come
    in_system: bool = False
    preemptive: bool = False
    servers: int = 1
    effort: float = 1.0
    classes: tuple[str, ...] = ("",)


def simulate_case(case: Case, load: float, num_jobs: int, seed: int) -> tuple[Floats, Ints]:
    """Simulate a queue; return, by job in order of arrival, what `exact` is the mean of, and the class.

    Raises:
        AssertionError: work was done twice, so that a preempted job did not resume where it was.
    """
    jobs = jobs_of(case, load, num_jobs, seed)
    tokens_a_second = COARSE if case.preemptive else FINE
    lengths = np.maximum(np.rint(jobs.services_s * tokens_a_second), 1).astype(np.int64)
    measured = np.empty(num_jobs)
    num_computed = 0

    def on_step(step: StepRecord) -> None:
        nonlocal num_computed
        num_computed += step.num_prefill_tokens + step.num_decode_tokens

    def on_finish(record: RequestRecord) -> None:
        until_s = record.finish_s if case.in_system else record.first_scheduled_s
        measured[int(record.request_id)] = (until_s or 0.0) - record.arrival_s

    limits = _limits(case.preemptive, int(lengths.max()))
    schedulers = [case.discipline(limits, jobs) for _ in range(case.servers)]
    cost = PricedByLength(1 / tokens_a_second)
    router: Router = CentralQueue() if case.servers > 1 else RoundRobin()  # held requests are in no policy's hands
    simulate_cluster(_arrivals(jobs, lengths), schedulers, router, cost, on_step, on_finish)
    if num_computed != lengths.sum():
        raise TwinserveError(f"{case.name}: {num_computed:,} tokens were computed for {lengths.sum():,} of service")
    return measured, jobs.classes


def jobs_of(case: Case, load: float, num_jobs: int, seed: int) -> Jobs:
    """The jobs that a case draws; no two queues, loads or numbers of jobs draw the same."""
    number = [other.name for other in CASES].index(case.name)
    entropy = [seed, number, num_jobs, round(1e6 * load)]
    return case.draw(np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy))), load, num_jobs)


def _arrivals(jobs: Jobs, lengths: Ints) -> Iterator[tuple[Request, int]]:
    """The jobs as requests with one output token."""
    for start in range(0, len(lengths), _TOLD_AT_ONCE):
        told = slice(start, start + _TOLD_AT_ONCE)
        rows = zip(*(column[told].tolist() for column in (jobs.arrivals_s, lengths, jobs.classes)), strict=True)
        for number, (arrival_s, length, kind) in enumerate(rows, start):
            request = Request(
                str(number),
                arrival_s,
                num_prompt_tokens=length,
                max_tokens=1,
                priority=kind,
                predicted_output_tokens=length,
            )
            yield request, 1


def _limits(preemptive: bool, longest: int) -> Limits:
    """One request at a time, and whatever it asks in one step."""
    block_size, num_blocks = (1, max(_CACHED_TOKENS, 4 * longest)) if preemptive else (longest + 1, 2)
    return Limits(
        token_budget=longest + 1,
        max_num_seqs=1,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=longest + 1,
        prefix_caching=preemptive,
    )


#: Columns become Python numbers so many at a time.
_TOLD_AT_ONCE = 10_000

#: Enough for all jobs that are preempted at once, and whatever is computed meanwhile.
_CACHED_TOKENS = 500_000


def _exponential(generator: Generator, mean_s: float, count: int) -> Floats:
    return generator.standard_exponential(count) * mean_s


def _one_class(service: Callable[[Generator, int], Floats], servers: int = 1) -> Draw:
    """Poisson arrivals of jobs with mean service 1."""

    def draw(generator: Generator, load: float, count: int) -> Jobs:
        arrivals_s = np.cumsum(_exponential(generator, 1 / (load * servers), count))
        return Jobs(arrivals_s, service(generator, count), np.zeros(count, dtype=np.int64))

    return draw


def _hyperexponential(generator: Generator, count: int) -> Floats:
    """Mean 1 and second moment 6.5: one of two exponentials, each with half of the work (balanced means)."""
    often = (1 + np.sqrt((_H2_SQUARE - 2) / _H2_SQUARE)) / 2
    means_s = np.where(generator.random(count) < often, 1 / (2 * often), 1 / (2 * (1 - often)))
    return generator.standard_exponential(count) * means_s


_H2_SQUARE = 6.5


def _two_classes(load: float) -> list[Traffic]:
    """Three urgent jobs, exponential with mean 1/2, to two others that take exactly 1; loads as 3 to 4."""
    scale = load / 0.7
    return [Traffic(0.6 * scale, 0.5, 0.5), Traffic(0.4 * scale, 1.0, 1.0)]


def _draw_two_classes(generator: Generator, load: float, count: int) -> Jobs:
    urgent, other = _two_classes(load)
    arrivals_s = np.cumsum(_exponential(generator, 1 / (urgent.rate + other.rate), count))
    classes = (generator.random(count) >= urgent.rate / (urgent.rate + other.rate)).astype(np.int64)
    services_s = np.where(classes == 0, _exponential(generator, urgent.mean_s, count), other.mean_s)
    return Jobs(arrivals_s, services_s, classes)


def _priority(limits: Limits, _: Jobs) -> Scheduler:
    return Priority(limits)


def _shortest_first(limits: Limits, _: Jobs) -> Scheduler:
    return SJF(limits)


def _preemptive_priority(limits: Limits, jobs: Jobs) -> Scheduler:
    return PreemptivePriority(limits, NextArrival(iter(jobs.arrivals_s.tolist())), 1 / COARSE)


def _shortest_remaining(limits: Limits, jobs: Jobs) -> Scheduler:
    return PreemptiveSRPT(limits, NextArrival(iter(jobs.arrivals_s.tolist())), 1 / COARSE)


def _ones(_: Generator, count: int) -> Floats:
    return np.ones(count)


def _memoryless(generator: Generator, count: int) -> Floats:
    return _exponential(generator, 1.0, count)


CASES = (
    Case(
        "M/D/1",
        _one_class(_ones),
        lambda load: [formulas.first_come_wait(Traffic(load, 1, 1))],
        effort=2,
    ),
    Case(
        "M/M/1",
        _one_class(_memoryless),
        lambda load: [formulas.first_come_wait(Traffic(load, 1, 2))],
        effort=3,
    ),
    Case(
        "M/G/1 (H2)",
        _one_class(_hyperexponential),
        lambda load: [formulas.first_come_wait(Traffic(load, 1, _H2_SQUARE))],
        effort=14,
    ),
    Case(
        "M/M/4",
        _one_class(_memoryless, 4),
        lambda load: [formulas.pool_wait(4 * load, 1, 4)],
        servers=4,
        effort=8,
    ),
    Case(
        "priorities",
        _draw_two_classes,
        lambda load: formulas.priority_waits(_two_classes(load)),
        _priority,
        effort=5,
        classes=("urgent", "other"),
    ),
    Case(
        "preemptive priorities",
        _draw_two_classes,
        lambda load: formulas.preemptive_times(_two_classes(load)),
        _preemptive_priority,
        in_system=True,
        preemptive=True,
        classes=("urgent", "other"),
    ),
    Case(
        "M/M/1 SJF",
        _one_class(_memoryless),
        lambda load: [formulas.shortest_first_wait(load)],
        _shortest_first,
        effort=2,
    ),
    Case(
        "M/M/1 SRPT",
        _one_class(_memoryless),
        lambda load: [formulas.shortest_remaining_time(load)],
        _shortest_remaining,
        in_system=True,
        preemptive=True,
        effort=0.75,
    ),
)
