"""Many points at once, in several processes: for questions that decide themselves which points they need.

A sweep leaves this to Hydra's launchers; here the points of one round may depend on the results of the last.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import run, storage
from experiments.composed import Composed
from experiments.config import read_point
from experiments.workloads import checks
from schedulers import InputError, TwinserveError


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a point.

    Attributes:
        said: the point and its figures in one line, for progress.
        folder: where its results lie; None if it failed.
        summary: its figures; empty if it failed.
        error: why it failed; "" if it did not.
    """

    said: str
    folder: Path | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def make_all(points: Sequence[Composed], jobs: int) -> Iterator[Made]:
    """Make these points, `jobs` at a time (-1: one a core), and yield what became of each, in their order.

    Those that were made before are not made again. A point that fails does not stop the others.
    """
    if jobs == 1:
        yield from map(make, points)
        return
    from joblib import cpu_count
    from joblib.externals.loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=cpu_count() if jobs == -1 else jobs)
    with _out_of_reach_of_ctrl_c():
        pending = [executor.submit(make, point) for point in points]
    try:
        yield from (future.result() for future in pending)
    except (KeyboardInterrupt, GeneratorExit):
        executor.shutdown(kill_workers=True)
        raise


@contextlib.contextmanager
def _out_of_reach_of_ctrl_c() -> Iterator[None]:
    """Processes started in here ignore Ctrl-C, which a terminal sends to all: whoever started them ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def make(composed: Composed) -> Made:
    """Make one point unless it is there already."""
    try:
        point = read_point(composed)
        said = run.ensure(point)
        return Made(said, point.folder, storage.read_summary(point.folder))
    except TwinserveError as error:
        return Made("FAILED", error=str(error))


def under_each(composed: Composed, names: Sequence[str]) -> dict[str, Composed]:
    """The point under each of these policies, by label; one that the command line gives, in either way, joins them.

    Raises:
        InputError: there is no such policy, or a point cannot be made under it.
    """
    given = composed.choices.get("scheduler")
    if given and "scheduler" in composed.varied and given not in names:
        names = [given, *names]
    policies = [composed.with_scheduler(str(name)) for name in names]
    return {read_point(policy).label: policy for policy in policies}


def num_jobs(composed: Composed) -> int:
    """The key `jobs`.

    Raises:
        InputError: it is no number of processes, or several engines would disturb each other.
    """
    jobs = composed.config.jobs
    if jobs != -1:
        checks.count("jobs", jobs)
    if composed.config.mode.get("name") == "real" and jobs != 1:
        raise InputError("jobs must be 1 with mode=real: two engines at once would disturb each other's times")
    return int(jobs)
