"""`experiment=compare`: one workload in both worlds: how far off is the simulator, and does it rank policies right?

Every policy serves the workload at the same shares of its own capacity, several times in the engine and once in the
simulator. The engine's own run-to-run spread says how much can be asked of a prediction.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from experiments import decision_log, run, storage
from experiments.comparison import Compared, rankings
from experiments.composed import Composed
from experiments.config import read_point
from experiments.parallel import under_each
from experiments.replay import recorded_point
from experiments.report.charts import chart_files
from experiments.report.compared import compared_chart
from experiments.workloads import checks
from schedulers import InputError
from schedulers.step import BatchShape
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

    def __post_init__(self) -> None:
        if not isinstance(self.schedulers, list) or not self.schedulers:
            raise InputError(f"question.schedulers={self.schedulers}: it must be a list such as [fcfs,chunked_prefill]")
        if not isinstance(self.loads, list) or not self.loads:
            raise InputError(f"question.loads={self.loads}: it must be a list such as [0.5,0.8]")
        for load in self.loads:
            checks.positive("question.loads", load)
        checks.count("question.repeats", self.repeats)


def compare(composed: Composed) -> None:
    """Make all runs, the engine's in rounds over the policies, and say how they compare."""
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
    folders: dict[tuple[str, float], list[Path]] = {job: [] for job in simulated}
    for repeat in range(1, question.repeats + 1):
        for job, point in simulated.items():
            served = read_point(point.with_values({"results": str(results / "compare" / f"run{repeat}")}))
            print(f"[run {repeat} of {question.repeats}] {run.ensure(served)}", flush=True)
            folders[job].append(served.folder)
    compared = []
    for (name, load), point in simulated.items():
        predicted = read_point(point.with_choice("mode", "sim"))
        run.ensure(predicted)
        runs, summary = folders[name, load], storage.read_summary(predicted.folder)
        kept = runs if composed.config.mode.decisions else []
        priced = [priced_share(folder, cast("CostModel", predicted.cost)) for folder in kept]
        summaries = [storage.read_summary(folder) for folder in runs]
        compared.append(Compared.of(name, load, point.config.workload.rate, summaries, summary, priced))
    text = "\n".join(told(compared))
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


def priced_share(folder: Path, cost: CostModel) -> float:
    """What the steps of the engine's run in `folder` cost by `cost`, as a share of what they took."""
    steps = decision_log.read(folder)
    point = recorded_point(folder)
    pricing = _Pricing(cast("CostModel", point.cost), cost)
    for _ in replay(steps, point.scheduler(), pricing):
        pass
    return pricing.priced_s / pricing.recorded_s


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


def told(compared: Iterable[Compared]) -> list[str]:
    """The comparison in lines of text."""
    compared = list(compared)
    lines = [
        "",
        f"{'policy':<18}{'load':>5}{'rate':>7}  {'metric':<12}{'engine':>11}{'spread':>8}{'simulator':>11}{'error':>8}",
    ]
    for item in compared:
        place = f"{item.policy:<18}{item.load:>5.0%}{item.rate:>7g}"
        for metric in item.engine:
            lines.append(
                f"{place}  {metric:<12}{item.middle(metric):>11,.1f}{item.spread(metric):>8.1%}"
                f"{item.simulator[metric]:>11,.1f}{item.error(metric):>+8.1%}"
            )
            place = " " * len(place)
        if item.priced:
            share = statistics.median(item.priced) - 1
            lines.append(f"{place}  the engine's own steps, priced by the simulator{share:>+26.1%}")
    return [*lines, "", *map(str, rankings(compared))]
