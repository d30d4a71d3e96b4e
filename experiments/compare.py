"""`experiment=compare`: one workload in both worlds: how far off is the simulator, and does it rank policies right?

Every policy serves the workload at the same shares of its own capacity, several times in the engine and once in the
simulator. The engine's own run-to-run spread says how much can be asked of a prediction.

On a machine that others share, a step takes longer in one minute than in the next. So the machine is gauged around each
of the engine's runs (`experiments.pace`), and beside the plain prediction stands the one at the mean of these readings,
which tells a wrong simulator from a machine that is not as fast as it was when it was profiled. So does what it says of
each run with all prices as much higher as that run's own steps took longer than their price.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from experiments import decision_log, run, storage
from experiments.comparison import Compared, rankings, verdicts
from experiments.composed import Composed
from experiments.config import Point, read_point
from experiments.pace import FILE, AtPace, Pace, PaceGauge
from experiments.parallel import under_each
from experiments.replay import recorded_point
from experiments.report.charts import chart_files
from experiments.report.compared import compared_chart
from experiments.summary import summarize
from experiments.workloads import checks
from real.compute_environment import compute_environment
from schedulers import InputError
from schedulers.step import BatchShape
from sim.costs import Profiled
from sim.replay import replay

if TYPE_CHECKING:
    from sim.costs import CostModel

#: Arrivals a second at which all of a workload is there at once, for any engine.
AT_ONCE = 1e5


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/compare.yaml for each key."""

    schedulers: list[str]
    loads: list[float]
    repeats: int
    gauge_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.schedulers, list) or not self.schedulers:
            raise InputError(f"question.schedulers={self.schedulers}: it must be a list such as [fcfs,chunked_prefill]")
        if not isinstance(self.loads, list) or not self.loads:
            raise InputError(f"question.loads={self.loads}: it must be a list such as [0.5,0.8]")
        for load in self.loads:
            checks.positive("question.loads", load)
        checks.count("question.repeats", self.repeats)
        checks.not_negative("question.gauge_s", self.gauge_s)


def compare(composed: Composed) -> None:
    """Make all runs, the engine's in rounds over the policies, and say how they compare."""
    os.environ.update(compute_environment())  # before torch is loaded: as in the engine's own processes
    question = composed.question(Question)
    if composed.choices.get("mode") != "real":
        raise InputError("experiment=compare runs the engine and the simulator: it needs mode=real")
    results = Path(composed.config.results)
    simulated: dict[tuple[str, float], Composed] = {}
    for name, policy in under_each(composed, question.schedulers).items():
        capacity = capacity_of(policy.with_choice("mode", "sim"))
        print(f"{name}: capacity {capacity:.2f} requests/s by the simulator", flush=True)
        for load in question.loads:
            simulated[name, load] = policy.with_rate(float(f"{load * capacity:.3g}"))
    storage.prepare(results / "compare")
    gauge = gauge_of(composed, question.gauge_s) if question.gauge_s else None
    folders: dict[tuple[str, float], list[Path]] = {job: [] for job in simulated}
    pace: Pace | None = None
    with closing(gauge) if gauge else nullcontext():
        for repeat in range(1, question.repeats + 1):
            for job, point in simulated.items():
                served = read_point(point.with_values({"results": str(results / "compare" / f"run{repeat}")}))
                told, pace = serve(served, gauge, pace)
                print(f"[run {repeat} of {question.repeats}] {told}", flush=True)
                folders[job].append(served.folder)
    paces = {job: [gauge.kept(folder) if gauge else [] for folder in served] for job, served in folders.items()}
    all_readings = [reading for of_runs in paces.values() for readings in of_runs for reading in readings]
    mean = Pace.mean(all_readings) if all_readings else None
    compared = []
    for (name, load), point in simulated.items():
        predicted = read_point(point.with_choice("mode", "sim"))
        run.ensure(predicted)
        runs, summary = folders[name, load], storage.read_summary(predicted.folder)
        kept = runs if composed.config.mode.decisions else []
        priced = [priced_share(folder, cast("CostModel", predicted.cost)) for folder in kept]
        summaries = [storage.read_summary(folder) for folder in runs]
        at_pace = simulated_at(predicted, mean) if mean else None
        at_own_pace = [simulated_at(predicted, Pace(1 / share, 1 / share)) for share in priced]
        read = paces[name, load] if gauge else []
        rate = point.config.workload.rate
        compared.append(Compared.of(name, load, rate, summaries, summary, priced, read, at_pace, at_own_pace))
    text = "\n".join(lines_of(compared))
    print(text)
    content = {
        "compared": [asdict(item) for item in compared],
        "rankings": [asdict(item) for item in rankings(compared)],
    }
    files = {"compare.txt": f"{text}\n".encode(), "compare.json": (json.dumps(content, indent=2) + "\n").encode()}
    storage.write_files(results / "compare", {**chart_files(compared_chart(compared)), **files})
    print(f"results: {results / 'compare'}")


def capacity_of(composed: Composed) -> float:
    """Arrivals a second that the simulator completes when all of the workload is there at once.

    Requests that follow others are part of the arrival that they follow, as they are to `workload.rate`.
    """
    point = read_point(composed.with_rate(AT_ONCE))
    num_arrivals = sum(not request.follows for request in point.workload.requests(point.seed))
    return num_arrivals / max(record.finish_s for record in run.simulate_point(point).requests)


def gauge_of(composed: Composed, seconds: float) -> PaceGauge | None:
    """A gauge of this machine, whose readings take so many seconds; None, said in a line, where there can be none."""
    cost = read_point(composed.with_choice("mode", "sim")).cost  # its own: what it is asked is not told of the workload
    if not isinstance(cost, Profiled):
        print("the machine's pace is not read: it is a share of what a profile says, which needs cost=profiled")
        return None
    try:
        return PaceGauge(read_point(composed), cost, Path(composed.config.cost.path), seconds)
    except InputError as error:
        print(f"the machine's pace is not read: {error}")
        return None


def serve(point: Point, gauge: PaceGauge | None, pace: Pace | None) -> tuple[str, Pace | None]:
    """Run the engine, unless it did before, with a reading of the gauge right before and right after, kept beside it.

    Args:
        point: what it serves.
        gauge: that of this machine, if there is one.
        pace: its last reading, if nothing happened since.

    Returns:
        the run in a line, and the reading after it, as `pace` of the next.
    """
    if run.is_stored(point):
        return run.ensure(point), pace
    (point.folder / FILE).unlink(missing_ok=True)  # that of a run that was damaged since
    if gauge is None:
        return run.ensure(point), None
    before = pace or gauge.read()
    told = run.ensure(point)
    after = gauge.read()
    gauge.keep(point.folder, [before, after])
    return f"{told}; the machine before: {before}; after: {after}", after


def simulated_at(point: Point, pace: Pace) -> dict[str, Any]:
    """The summary of a point that is simulated at a pace of the machine; nothing of it is stored."""
    cost = AtPace(cast("CostModel", point.cost), pace)
    outcome = run.simulate_point(replace(point, cost=cost, keep_decisions=False))
    return summarize(outcome.steps, outcome.requests, point.slo, point.replicas)


def priced_share(folder: Path, cost: CostModel) -> float:
    """What the steps of the engine's run in `folder` cost by `cost`, as a share of what they took.

    A price includes what the engine does between two steps; what passed between steps of the same request counts too.
    """
    steps = decision_log.read(folder)
    between_s = sum(
        following.start_s - step.end_s
        for step, following in pairwise(steps)
        if step.num_scheduled_tokens.keys() & following.num_scheduled_tokens.keys()
    )
    point = recorded_point(folder)
    pricing = _Pricing(cast("CostModel", point.cost), cost)
    for _ in replay(steps, point.scheduler(), pricing):
        pass
    return pricing.priced_s / (pricing.recorded_s + between_s)


class _Pricing:
    """The recorded step times, with a tally of them and of what another cost model says."""

    def __init__(self, recorded: CostModel, cost: CostModel) -> None:
        self._recorded, self._cost = recorded, cost
        self.recorded_s = self.priced_s = 0.0

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """The recorded time."""
        step_s = self._recorded.step_time(batch, idle_s)
        self.recorded_s += step_s
        self.priced_s += self._cost.step_time(batch, idle_s)
        return step_s

    def warnings(self) -> list[str]:
        """None of its own."""
        return []

    def describe(self) -> str:
        """As the recorded times."""
        return self._recorded.describe()


def lines_of(compared: Sequence[Compared]) -> list[str]:
    """The comparison in lines of text."""
    gauged, kept = any(item.at_pace for item in compared), any(item.at_own_pace for item in compared)
    width = max(16, *(len(item.policy) for item in compared)) + 2
    heads = (
        f"{'policy':<{width}}{'load':>5}{'rate':>7}  "
        f"{'metric':<12}{'engine':>11}{'spread':>8}{'simulator':>11}{'error':>8}"
    )
    heads += (f"{'at its pace':>13}{'error':>8}" if gauged else "") + (f"{'error, own pace':>17}" if kept else "")
    lines = ["", heads]
    for item in compared:
        place = f"{item.policy:<{width}}{item.load:>5.0%}{item.rate:>7g}"
        for metric in item.engine:
            spread = item.spread(metric)
            line = (
                f"{place}  {metric:<12}{item.middle(metric):>11,.1f}{'-' if spread is None else f'{spread:.1%}':>8}"
                f"{item.simulator[metric]:>11,.1f}{item.error(metric):>+8.1%}"
            )
            error, own_error = item.error_at_pace(metric), item.error_at_own_pace(metric)
            if gauged:
                line += f"{'-':>13}{'-':>8}" if error is None else f"{item.at_pace[metric]:>13,.1f}{error:>+8.1%}"
            if kept:
                line += f"{'-':>17}" if own_error is None else f"{own_error:>+17.1%}"
            lines.append(line)
            place = " " * len(place)
        if item.priced:
            share = statistics.median(item.priced) - 1
            lines.append(f"{place}  engine's steps, priced by the simulator{share:>+11.1%}")
        if item.paces:
            lines.append(f"{place}  the machine's pace: {item.paces_in_words()}")
    return [*lines, "", *verdicts(compared), "", *map(str, rankings(compared))]
