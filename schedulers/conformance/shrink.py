"""From a scenario that breaks a rule to the smallest that does: delta debugging (Zeller and Hildebrandt, 2002)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

from schedulers.conformance.scenario import Job, Scenario

#: Simpler values of a job's fields than those that it has.
_PLAIN = {field.name: field.default for field in fields(Job)[5:]}


def shrink(scenario: Scenario, still_breaks: Callable[[Scenario], bool], max_tries: int) -> Scenario:
    """The smallest scenario found in `max_tries` tries: fewer jobs first, then simpler ones, then tighter limits.

    What is tried is the same each time, so that the same policy gives the same report.
    """
    tries = 0
    shrunk = True
    while shrunk:
        shrunk = False
        for simpler in (_fewer_jobs, _simpler_jobs, _smaller_numbers, _tighter_limits):
            candidates = simpler(scenario)
            while (candidate := next(candidates, None)) is not None:
                if tries == max_tries:
                    return scenario
                tries += 1
                if still_breaks(candidate):
                    scenario, candidates, shrunk = candidate, simpler(candidate), True
    renamed = replace(scenario, jobs=tuple(replace(job, name=f"r{i}") for i, job in enumerate(scenario.jobs)))
    return renamed if renamed != scenario and still_breaks(renamed) else scenario


def _fewer_jobs(scenario: Scenario) -> Iterator[Scenario]:
    """Without half of the jobs, a quarter, ... and each one."""
    jobs = scenario.jobs
    size = len(jobs) // 2
    while size:
        for start in range(0, len(jobs), size):
            yield replace(scenario, jobs=jobs[:start] + jobs[start + size :])
        size //= 2


def _simpler_jobs(scenario: Scenario) -> Iterator[Scenario]:
    """All jobs as simple as can be, or without their peculiarities, or at the start; one job without one of them."""
    yield from _if_new(scenario, [Job(job.name) for job in scenario.jobs])
    yield from _if_new(scenario, [Job(job.name, job.prompt, job.max_tokens) for job in scenario.jobs])
    yield from _if_new(scenario, [_moved(job, 0.0) for job in scenario.jobs])
    for index, job in enumerate(scenario.jobs):
        if job.aborted_s is not None:
            yield _with(scenario, index, aborted_s=None)
        if job.max_tokens is None:
            yield _with(scenario, index, max_tokens=1)
        for name, plain in _PLAIN.items():
            if getattr(job, name) != plain:
                yield _with(scenario, index, **{name: plain})
    if scenario.seed:
        yield replace(scenario, seed=0)


def _smaller_numbers(scenario: Scenario) -> Iterator[Scenario]:
    """One job that comes earlier, is cancelled earlier, or has fewer tokens."""
    for index, job in enumerate(scenario.jobs):
        for arrives_s in _smaller_times(job.arrives_s, 0.0):
            moved = _moved(job, arrives_s)
            yield _with(scenario, index, arrives_s=moved.arrives_s, aborted_s=moved.aborted_s)
        if job.aborted_s is not None:
            for aborted_s in _smaller_times(job.aborted_s, job.arrives_s):
                yield _with(scenario, index, aborted_s=aborted_s)
        for length in _smaller(len(job.prompt)):
            yield _with(scenario, index, prompt=job.prompt[:length])
        if any(job.prompt):
            yield _with(scenario, index, prompt=(0,) * len(job.prompt))
        for max_tokens in _smaller(job.max_tokens or 1):
            yield _with(scenario, index, max_tokens=max_tokens, min_tokens=min(job.min_tokens, max_tokens))


def _tighter_limits(scenario: Scenario) -> Iterator[Scenario]:
    """One limit smaller, or without prefix caching."""
    limits = scenario.limits
    if limits.prefix_caching:
        yield replace(scenario, limits=replace(limits, prefix_caching=False))
    for name in ("max_num_seqs", "num_blocks", "block_size", "token_budget", "max_model_len"):
        for value in _smaller(getattr(limits, name)):
            changed: dict[str, Any] = {name: value}
            yield replace(scenario, limits=replace(limits, **changed))


def _if_new(scenario: Scenario, jobs: Iterable[Job]) -> Iterator[Scenario]:
    """The scenario with these jobs, unless they are its own."""
    changed = replace(scenario, jobs=tuple(jobs))
    if changed != scenario:
        yield changed


def _with(scenario: Scenario, index: int, **changes: Any) -> Scenario:
    """The scenario with one job changed."""
    jobs = scenario.jobs
    return replace(scenario, jobs=(*jobs[:index], replace(jobs[index], **changes), *jobs[index + 1 :]))


def _moved(job: Job, arrives_s: float) -> Job:
    """A job that comes at another time, and is cancelled as long after that as before."""
    aborted_s = None if job.aborted_s is None else job.aborted_s - job.arrives_s + arrives_s
    return replace(job, arrives_s=arrives_s, aborted_s=aborted_s)


def _smaller(number: int) -> Iterator[int]:
    """1, half of a number, and one less."""
    yield from dict.fromkeys(value for value in (1, number // 2, number - 1) if 1 <= value < number)


def _smaller_times(time_s: float, least_s: float) -> Iterator[float]:
    """The earliest time, the middle in half seconds, the last whole second and half a second before `time_s`."""
    tries = (least_s, round(time_s + least_s) / 2, float(int(time_s)), time_s - 0.5)
    yield from dict.fromkeys(value for value in tries if least_s <= value < time_s)
