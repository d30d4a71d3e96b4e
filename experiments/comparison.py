"""Figures of a workload in both worlds, and what can be said of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.pace import Pace

#: What is compared: a name, its unit, the factor from a summary's unit to that, and its place in a summary.
METRICS: dict[str, tuple[str, float, tuple[str, str]]] = {
    f"{metric.upper()} {percentile.upper()}": ("ms", 1e3, (f"{metric}_s", percentile))
    for metric in ("ttft", "tpot", "itl", "e2e")
    for percentile in ("p50", "p90")
} | {"throughput": ("tokens/s", 1.0, ("throughput", "output_tokens_per_s"))}

#: Metrics that a prediction is judged by.
JUDGED = ("TTFT P50", "TPOT P50", "E2E P50", "TTFT P90", "TPOT P90", "E2E P90")
#: How far a good prediction may be off.
CLOSE = 0.10

#: Metrics by which policies are ranked.
RANKED = ("TTFT P90", "TPOT P90")


@dataclass(frozen=True, slots=True)
class Compared:
    """A policy under one load.

    Attributes:
        policy: its label.
        load: the arrival rate as a share of the policy's capacity.
        rate: arrivals a second.
        engine: by metric, what each of the engine's runs measured; a metric that one of the runs or the simulation does
            not have (TPOT, where every output is one token) is left out.
        simulator: by metric, what the simulator said.
        priced: of each of the engine's runs that kept its decisions, what its own steps cost by the simulator's cost
            model, as a share of what they took. It tells wrong prices (a machine that was slower while it was profiled)
            from wrong queues.
        paces: of each of the engine's runs, the machine's pace as it was read before and after it; none, where it was
            not.
        at_pace: by metric, what the simulator says at the machine's pace, the mean of all readings of the comparison:
            a single one is as much the chance of its seconds as a reading of the machine. Empty, if there is none.
        at_own_pace: by metric, for each of the engine's runs in `priced`, what the simulator says if all prices are as
            much higher as that run's own steps took longer than theirs. No prediction, for one number of the run is
            known; it shows the errors that are not the machine's.
    """

    policy: str
    load: float
    rate: float
    engine: Mapping[str, Sequence[float]]
    simulator: Mapping[str, float]
    priced: Sequence[float] = ()
    paces: Sequence[Sequence[Pace]] = ()
    at_pace: Mapping[str, float] = field(default_factory=dict)
    at_own_pace: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        policy: str,
        load: float,
        rate: float,
        engine: Sequence[Mapping[str, Any]],
        simulator: Mapping[str, Any],
        priced: Sequence[float] = (),
        paces: Sequence[Sequence[Pace]] = (),
        at_pace: Mapping[str, Any] | None = None,
        at_own_pace: Sequence[Mapping[str, Any]] = (),
    ) -> Compared:
        """From the summaries of the engine's runs and of the simulator's; None at a pace that was not read."""
        figures: dict[str, list[float]] = {}
        for name in METRICS:
            found = [figure for run in (*engine, simulator) if (figure := _figure(run, name)) is not None]
            if len(found) == len(engine) + 1:
                figures[name] = found
        runs = {name: found[:-1] for name, found in figures.items()}
        simulated = {name: found[-1] for name, found in figures.items()}
        paced = {name: figure for name in figures if at_pace and (figure := _figure(at_pace, name)) is not None}
        own = {
            name: found
            for name in figures
            if (found := [figure for run in at_own_pace if (figure := _figure(run, name)) is not None])
            and len(found) == len(at_own_pace)
        }
        return cls(policy, load, rate, runs, simulated, priced, paces, paced, own)

    def middle(self, metric: str) -> float:
        """The median of the engine's runs, so that one that was disturbed does not count."""
        return statistics.median(self.engine[metric])

    def error(self, metric: str) -> float:
        """How far the simulator is off, as a share of the engine's middle."""
        return self.simulator[metric] / self.middle(metric) - 1

    def error_at_pace(self, metric: str) -> float | None:
        """How far what it says at the machine's pace is off; None, if that was not read."""
        return self.at_pace[metric] / self.middle(metric) - 1 if metric in self.at_pace else None

    def error_at_own_pace(self, metric: str) -> float | None:
        """How far it is off at the pace of a run's own steps, the median of the runs; None, if they were not kept."""
        if metric not in self.at_own_pace:
            return None
        pairs = zip(self.at_own_pace[metric], self.engine[metric], strict=True)
        return statistics.median(simulated / measured - 1 for simulated, measured in pairs)

    def spread(self, metric: str) -> float | None:
        """Of the engine's runs: the largest less the smallest, as a share of the middle; None of a single run."""
        runs = self.engine[metric]
        return (max(runs) - min(runs)) / self.middle(metric) if len(runs) > 1 else None

    def paces_in_words(self) -> str:
        """From the quickest to the slowest that the machine was found to be, as shares of what the profile says."""
        readings = [pace for readings in self.paces for pace in readings]
        absent = sum(not readings for readings in self.paces)
        left_out = f"{absent} of {len(self.paces)} runs not gauged" if absent else ""
        if not readings:
            return left_out
        ends = [
            f"{kind} x{min(shares):.2f} to x{max(shares):.2f}"
            for kind, shares in (
                ("decodes", [pace.decodes for pace in readings]),
                ("prompts", [pace.prompts for pace in readings]),
            )
        ]
        return "; ".join(filter(None, [", ".join(ends), left_out]))


def verdicts(compared: Sequence[Compared]) -> list[str]:
    """How good the predictions are: the plain ones, and those at a pace, if there are.

    And how good the engine is at predicting itself, which is as much as can be asked of a simulator.
    """
    kinds: dict[str, Callable[[Compared, str], float | None]] = {
        "predicted from the workload and the prices alone": Compared.error,
        "predicted at the machine's pace": Compared.error_at_pace,
        "simulated at the pace of each run's own steps, one number a run": Compared.error_at_own_pace,
    }
    lines = []
    for kind, error_of in kinds.items():
        judged = [
            (error, item.spread(metric))
            for item in compared
            for metric in JUDGED
            if metric in item.engine and (error := error_of(item, metric)) is not None
        ]
        if judged:
            close = sum(abs(error) <= CLOSE for error, _ in judged)
            within = [abs(error) <= spread for error, spread in judged if spread is not None]
            largest = max((error for error, _ in judged), key=abs)
            own = f" and {sum(within)} within the engine's own spread" if within else ""
            lines.append(
                f"{kind}: of {len(judged)} figures (P50, P90 of TTFT, TPOT, E2E) {close} are within {CLOSE:.0%}{own}; "
                f"the largest error is {largest:+.1%}"
            )
    close_runs = _runs_close_to_the_others(compared)
    if close_runs:
        lines.append(
            f"for comparison, a run of the engine as the prediction of its other runs: "
            f"{statistics.fmean(close_runs):.0f} are within {CLOSE:.0%} in the mean, "
            f"{min(close_runs)} to {max(close_runs)} from run to run"
        )
    return lines


def _runs_close_to_the_others(compared: Sequence[Compared]) -> list[int]:
    """For each run of the engine, how many of its judged figures are close to the middle of the other runs'."""
    runs_of = [item.engine[metric] for item in compared for metric in JUDGED if metric in item.engine]
    number = min(map(len, runs_of), default=0)
    if number < 2:
        return []
    return [
        sum(abs(runs[index] / statistics.median([*runs[:index], *runs[index + 1 :]]) - 1) <= CLOSE for runs in runs_of)
        for index in range(number)
    ]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The policies under one load, from the least to the greatest value of a metric.

    Attributes:
        wrong: pairs, the lesser first, that the engine's runs tell apart and the simulator has equal, or the other way
            round.
        close: pairs that the engine's runs do not tell apart: their ranges overlap, or are of a single run.
    """

    metric: str
    load: float
    engine: list[str]
    simulator: list[str]
    wrong: list[tuple[str, str]]
    close: list[tuple[str, str]]

    def __str__(self) -> str:
        said = f"{self.metric} at {self.load:.0%} load: the engine has {' < '.join(self.engine)}, the simulator "
        said += "the same" if self.engine == self.simulator and not self.wrong else " < ".join(self.simulator)
        if self.close:
            said += f"; the engine does not tell apart {', '.join(' and '.join(pair) for pair in self.close)}"
        wrong = ", ".join(" before ".join(pair) for pair in self.wrong)
        return f"{said}: {f'WRONG, {wrong} in the engine' if wrong else 'right wherever it can be told'}"


def rankings(compared: Sequence[Compared]) -> list[Ranking]:
    """By each metric of `RANKED` under each load that several policies were put under."""
    found = []
    for load in dict.fromkeys(item.load for item in compared):
        for metric in RANKED:
            items = [item for item in compared if item.load == load and metric in item.engine]
            if len(items) > 1:
                found.append(_ranked(items, load, metric))
    return found


def _ranked(items: Sequence[Compared], load: float, metric: str) -> Ranking:
    by_engine = sorted(items, key=lambda item: item.middle(metric))
    by_simulator = sorted(items, key=lambda item: item.simulator[metric])
    wrong, close = [], []
    for less, more in combinations(by_engine, 2):
        pair = (less.policy, more.policy)
        told_apart = max(less.engine[metric]) < min(more.engine[metric]) and len(less.engine[metric]) > 1
        if not told_apart:
            close.append(pair)
        elif not less.simulator[metric] < more.simulator[metric]:
            wrong.append(pair)
    return Ranking(
        metric, load, [item.policy for item in by_engine], [item.policy for item in by_simulator], wrong, close
    )


def _figure(summary: Mapping[str, Any], name: str) -> float | None:
    _, factor, (group, key) = METRICS[name]
    value = summary[group][key]
    return None if value is None else factor * value
