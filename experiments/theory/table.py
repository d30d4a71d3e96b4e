"""`experiment=theory`: the closed forms beside what the simulator says, with 95 % intervals."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.composed import Composed
from experiments.report.study import Estimate
from experiments.storage import write_files
from experiments.theory.cases import CASES, Case, simulate_case
from experiments.workloads import checks
from schedulers import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True, slots=True)
class Theory:
    """What is asked: see conf/experiment/theory.yaml.

    Raises:
        InputError: a value is not of its kind; the message names it.
    """

    jobs: int
    loads: Sequence[float]
    batches: int
    warm_up: float

    def __post_init__(self) -> None:
        checks.count("question.jobs", self.jobs)
        checks.count("question.batches", self.batches)
        checks.not_negative("question.warm_up", self.warm_up)
        given: Any = self.loads
        if not isinstance(given, list) or not given:
            raise InputError(f"question.loads={given}: it must be a list of loads, such as [0.3,0.7,0.9]")
        for load in given:
            checks.positive("question.loads", load)
            if load >= 1:
                raise InputError(f"question.loads={load}: a load must be below 1, or the queue grows for ever")
        if self.warm_up >= 1:
            raise InputError(f"question.warm_up={self.warm_up}: it must be below 1, or no job is counted")
        fewest = min(int(self.jobs * case.effort) for case in CASES) * (1 - self.warm_up)
        if self.batches < 2 or fewest < 100 * self.batches:
            raise InputError(
                f"question.batches={self.batches}: it must be at least 2, and leave 100 jobs a batch of the "
                f"{fewest:.0f} that the shortest run counts"
            )


@dataclass(frozen=True, slots=True)
class Row:
    """One mean, closed form and simulated; `half_width` is half of the 95 % interval. Times are in seconds."""

    case: str
    load: float
    what: str
    exact: float
    simulated: float
    half_width: float
    jobs: int

    @property
    def inside(self) -> bool:
        """Whether the closed form lies in the interval."""
        return abs(self.simulated - self.exact) <= self.half_width


def run_theory(composed: Composed) -> None:
    """Simulate every case at every load, print the table, and write it with a chart into `results`/theory.

    Raises:
        SystemExit: with status 1, if a closed form lies outside the interval that holds for all of them at once.
    """
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    asked = composed.question(Theory)
    started = time.monotonic()
    work = [(case, load) for case in CASES for load in asked.loads]
    found = Parallel(n_jobs=composed.config.jobs, return_as="generator")(
        delayed(compare)(case, load, asked, composed.config.seed) for case, load in work
    )
    rows: list[Row] = []
    print(HEAD)
    for some in found:
        rows += some
        for row in some:
            print(line(row), flush=True)
    factor = joint_factor(len(rows), asked.batches)
    outside = [row for row in rows if not row.inside]
    far = [row for row in rows if abs(row.simulated - row.exact) > factor * row.half_width]
    print(
        f"{len(outside)} of {len(rows)} closed forms lie outside their interval, where chance puts one in twenty, "
        f"and {len(far)} outside the joint one, {factor:.2f} times as wide, which holds all with 95 % "
        f"({time.monotonic() - started:.0f} s)"
    )
    folder = Path(composed.config.results) / "theory"
    told = [{**asdict(row), "inside": row.inside} for row in rows]
    write_files(folder, {**_chart(rows), "theory.json": (json.dumps(told, indent=2) + "\n").encode()})
    print(f"results: {folder}")
    if far:
        raise SystemExit(1)


def compare(case: Case, load: float, asked: Theory, seed: int) -> list[Row]:
    """Simulate one queue, and set its closed forms beside what it measured, a row a class.

    The interval is by batch means: the jobs, in order of arrival, are cut into batches so long that their means are all
    but independent, and Student's t does the rest (Law, Simulation Modeling and Analysis, section 9.5).
    """
    num_jobs = int(asked.jobs * case.effort)
    measured, classes = simulate_case(case, load, num_jobs, seed)
    counted = slice(int(asked.warm_up * num_jobs), None)
    rows = []
    for number, (name, exact) in enumerate(zip(case.classes, case.exact(load), strict=True)):
        batches = np.array_split(measured[counted][classes[counted] == number], asked.batches)
        estimate = Estimate.of([float(batch.mean()) for batch in batches])
        what = f"{'time in system' if case.in_system else 'wait'}{name and f', {name}'}"
        rows.append(Row(case.name, load, what, exact, estimate.mean, float(estimate.half_width or 0.0), num_jobs))
    return rows


def joint_factor(num_rows: int, batches: int) -> float:
    """How many times as wide `num_rows` intervals must be for all to hold the truth at once in 95 % of all cases.

    Bonferroni: each misses it with a chance of 5 % over their number.
    """
    return student_t(1 - 0.025 / num_rows, batches - 1) / student_t(0.975, batches - 1)


def student_t(quantile: float, freedom: int) -> float:
    """A quantile of Student's t by its Cornish-Fisher expansion; to a percent for 20 degrees of freedom or more."""
    z = NormalDist().inv_cdf(quantile)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + (z**3 + z) / (4 * freedom) + second


HEAD = (
    f"{'queue':22} {'load':>4}  {'mean':23} {'closed form':>11} {'simulated':>10} {'95 % interval':>19} "
    f"{'':>7}  {'inside?':7} {'jobs':>10}"
)


def line(row: Row) -> str:
    """A row for the terminal."""
    low, high = row.simulated - row.half_width, row.simulated + row.half_width
    return (
        f"{row.case:22} {row.load:4g}  {row.what:23} {row.exact:11.4f} {row.simulated:10.4f} "
        f"{f'{low:.4f} .. {high:.4f}':>19} {f'+-{row.half_width / row.exact:.1%}':>7}  "
        f"{'yes' if row.inside else 'NO':7} {row.jobs:10,}"
    )


def _chart(rows: Sequence[Row]) -> dict[str, bytes]:
    """Simulated over exact with its interval, a panel a load."""
    from functools import partial

    from experiments.report.charts import Chart, Panel, chart_files

    loads = sorted({row.load for row in rows})
    panels = [
        Panel(f"Load {load:g}", partial(_draw, [row for row in rows if row.load == load], index == 0))
        for index, load in enumerate(loads)
    ]
    title = "The simulator against queueing theory"
    return chart_files(Chart("theory", title, "Simulated over exact means, with 95 % intervals.", panels, {}))


def _draw(rows: Sequence[Row], named: bool, axes: Axes) -> None:
    from experiments.report.style import INK, SERIES_COLORS

    inside, outside = SERIES_COLORS[0][0], SERIES_COLORS[1][0]
    for place, row in enumerate(reversed(rows)):
        color = inside if row.inside else outside
        deviation = 100 * (row.simulated / row.exact - 1)
        axes.errorbar(deviation, place, xerr=100 * row.half_width / row.exact, fmt="o", color=color, capsize=2)
    axes.axvline(0, color=INK[0], linewidth=0.8)
    axes.set_yticks(range(len(rows)))
    names = [f"{row.case}{row.what[row.what.index(',') :] if ',' in row.what else ''}" for row in reversed(rows)]
    axes.set_yticklabels(names if named else [""] * len(rows))
    axes.set_xlabel("simulated mean beside the closed form (%)")
