"""`experiment=capacity`: how many requests a second does each scheduler take before it misses the SLO?

A run is finite: a rate above what the engine sustains may pass when the arrivals end before the queue is long. With
few requests the capacity found is that of a burst of so many.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.capacity_search import Bounds, Criterion, Evaluation, Search
from experiments.composed import Composed
from experiments.config import Point, read_point
from experiments.distribution import PERCENTILES
from experiments.parallel import make_all, num_jobs, under_each
from experiments.workloads import checks
from schedulers import SLO, InputError, TwinserveError

#: Latencies that may have a target: the name, where it is in a summary, and whose target it is held to.
LATENCIES = {"ttft": ("ttft_s", "ttft_s"), "tpot": ("tpot_s", "tpot_s"), "tbt": ("itl_s", "tpot_s")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/capacity.yaml for each key."""

    schedulers: list[str]
    percentile: int
    latencies: list[str]
    share: float | None
    lowest: float
    highest: float
    precision: float
    min_seeds: int
    max_seeds: int

    def __post_init__(self) -> None:
        checks.some("question.schedulers", self.schedulers, "[fcfs,chunked_prefill]")
        checks.some("question.latencies", self.latencies, "[ttft,tpot]")
        for latency in self.latencies:
            checks.one_of("question.latencies", latency, tuple(LATENCIES))
        if self.percentile not in PERCENTILES:
            raise InputError(f"question.percentile={self.percentile}: it must be one of {PERCENTILES}")
        if self.share is not None:
            checks.positive("question.share", self.share)
            if self.share > 1:
                raise InputError(f"question.share={self.share}: it must be at most 1")
        checks.rate("question.lowest", self.lowest)
        checks.positive("question.precision", self.precision)
        for name in ("min_seeds", "max_seeds"):
            checks.count(f"question.{name}", getattr(self, name))
        if self.min_seeds < 2:
            raise InputError("question.min_seeds=1: a confidence interval needs at least 2 seeds")
        for low, high in (("lowest", "highest"), ("min_seeds", "max_seeds")):
            checks.positive(f"question.{high}", getattr(self, high))
            if getattr(self, high) < getattr(self, low):
                raise InputError(f"question.{high}={getattr(self, high)}: it must be at least question.{low}")

    def criteria(self, slo: SLO) -> list[Criterion]:
        """What must hold at a rate.

        Raises:
            InputError: there is no target to hold the latencies to.
        """
        if self.share is not None:
            return [Criterion("requests within SLO", ("goodput", "share"), self.share, is_latency=False)]
        key = f"p{self.percentile}"
        criteria = []
        for latency in dict.fromkeys(self.latencies):
            where, whose = LATENCIES[latency]
            if (target := getattr(slo, whose)) is not None:
                name = f"{latency.upper()} P{self.percentile}"
                criteria.append(Criterion(name, (where, key), target, is_latency=True))
        if not criteria:
            raise InputError(
                "slo: there is no target for any of question.latencies; choose slo=interactive or give one: "
                "slo.ttft_s=1"
            )
        return criteria

    @property
    def bounds(self) -> Bounds:
        """Where to search, and how closely."""
        return Bounds(
            lowest=self.lowest,
            highest=self.highest,
            precision=self.precision,
            min_seeds=self.min_seeds,
            max_seeds=self.max_seeds,
        )


def capacity(composed: Composed) -> None:
    """Search for every scheduler's capacity, all at once; say it and write it.

    Raises:
        InputError: the question, or what all points share, is wrong.
        SystemExit: with status 1, if a scheduler failed; the others are reported all the same.
    """
    question, jobs = composed.question(Question), num_jobs(composed)
    bases = under_each(composed, question.schedulers)
    point = read_point(next(iter(bases.values())))
    criteria = question.criteria(point.slo)
    given = composed.config.workload.get("rate")
    first = given if isinstance(given, int | float) and given > 0 else 1.0
    composed.with_rate(first)
    searches = {label: Search(criteria, question.bounds, first) for label in bases}
    print(f"capacity under {' and '.join(map(told_criterion, criteria))}, priced by {point.timing}")
    print("Ctrl-C keeps what is finished; the same command goes on from there", flush=True)
    search_all(searches, bases, jobs)
    lines = told(searches)
    print("\n".join(lines))
    folder = Path(composed.config.results) / "capacity"
    write(folder, question, point, searches, lines)
    print(f"results: {folder / 'report.html'}")
    if failed := [f"{label}: {search.error}" for label, search in searches.items() if search.error]:
        raise TwinserveError("; ".join(failed))


def search_all(searches: Mapping[str, Search], bases: Mapping[str, Composed], jobs: int) -> None:
    """Go on with all searches, round by round, until each has ended; every round's runs are made together.

    What a search decides depends on its own runs alone, so that the number of processes changes no result.
    """
    while wanted := {label: search.wanted for label, search in searches.items() if search.wanted}:
        points = [
            bases[label].with_rate(rate).with_values({"seed": bases[label].config.seed + seed})
            for label, runs in wanted.items()
            for rate, seed in runs
        ]
        made = make_all(points, jobs)
        for label, runs in wanted.items():
            results = [next(made) for _ in runs]
            error = next((result.error for result in results if result.error), "")
            if error:
                searches[label].give_up(error)
                print(f"{label} at {runs[0][0]:g} requests/s: FAILED", flush=True)
                continue
            evaluation = searches[label].learn([result.summary for result in results])
            if not evaluation.intervals:
                searches[label].give_up("no request has a target to meet, or a latency that one is set for")
            print(f"{label} {told_evaluation(evaluation, searches[label].criteria)}", flush=True)


def told_criterion(criterion: Criterion) -> str:
    """A criterion in words."""
    if criterion.is_latency:
        return f"{criterion.name} <= {_value(criterion, criterion.target)}"
    return f"{criterion.name} >= {_value(criterion, criterion.target)}"


def told_evaluation(evaluation: Evaluation, criteria: tuple[Criterion, ...]) -> str:
    """An evaluation in a line: what each criterion came to."""
    found = []
    for criterion in criteria:
        if interval := evaluation.intervals.get(criterion.name):
            mean, low, high = (_value(criterion, end) for end in (interval.mean, interval.low, interval.high))
            found.append(f"{criterion.name} {mean} ({low} to {high})")
    return (
        f"at {evaluation.rate:g} requests/s: {evaluation.verdict.value} by {evaluation.num_seeds} seeds, "
        f"{', '.join(found)}"
    )


def told(searches: Mapping[str, Search]) -> list[str]:
    """The capacities as a table of text."""
    width = max(map(len, [*searches, "scheduler"]))
    lines = ["", f"{'scheduler':<{width}}  {'capacity':>9}  {'95 % interval':>17}  rates tried  runs"]
    for label, search in searches.items():
        runs = sum(evaluation.num_seeds for evaluation in search.evaluations.values())
        shown = "failed" if search.error else _rate(search.capacity, f"< {search.bounds.lowest:g}")
        low, high = search.interval
        between = f"{_rate(low, '0')} to {_rate(high, 'above')}"
        lines.append(f"{label:<{width}}  {shown:>9}  {between:>17}  {len(search.evaluations):>11}  {runs:>4}")
    ends = "the nearest rates at which the SLO is met, or missed, with confidence"
    return [*lines, f"capacity in requests/s; its interval ends at {ends}"]


def write(folder: Path, question: Question, point: Point, searches: Mapping[str, Search], lines: list[str]) -> None:
    """capacity.json, capacity.txt, the figure, and a page with all of it."""
    from experiments.report.capacities import capacity_chart
    from experiments.report.charts import chart_files
    from experiments.report.description import RunDescription
    from experiments.report.page import chart_section, description_section, page

    content = {
        "question": asdict(question),
        "criteria": [asdict(criterion) for criterion in question.criteria(point.slo)],
        "workload": point.workload.describe(),
        "cost": point.timing,
        "schedulers": {label: _plain(search) for label, search in searches.items()},
    }
    chart = capacity_chart(searches)
    described = RunDescription(
        config_yaml=point.config_yaml, cost_model=point.timing, facts={"Workload": point.workload.describe()}
    )
    sections = [
        "<header><h1>Capacity under an SLO</h1></header>",
        f"<section><pre>{escape(chr(10).join(lines).strip())}</pre></section>",
        chart_section(chart),
        description_section(described, {}),
    ]
    files = {
        **chart_files(chart),
        "report.html": page("Capacity under an SLO", sections),
        "capacity.txt": ("\n".join(lines).strip() + "\n").encode(),
        "capacity.json": (json.dumps(content, indent=2) + "\n").encode(),
    }
    storage.write_files(folder, files)


def _plain(search: Search) -> dict[str, Any]:
    evaluations = []
    for evaluation in search.evaluations.values():
        intervals = {name: asdict(interval) for name, interval in evaluation.intervals.items()}
        finite = {
            name: {end: value if abs(value) < float("inf") else None for end, value in interval.items()}
            for name, interval in intervals.items()
        }
        verdict = evaluation.verdict.value
        evaluations.append(
            {"rate": evaluation.rate, "seeds": evaluation.num_seeds, "verdict": verdict, "intervals": finite}
        )
    return {
        "capacity": search.capacity,
        "interval": search.interval,
        "error": search.error,
        "evaluations": evaluations,
    }


def _rate(rate: float | None, absent: str) -> str:
    return absent if rate is None else f"{rate:g}"


def _value(criterion: Criterion, value: float) -> str:
    if not criterion.is_latency:
        return f"{value:.1%}"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
