"""The points of a sweep, grouped: which series there are, which rates, and what each figure is with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.report.style import Look
from schedulers.errors import InputError

#: Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)

#: A rate is sustained where this share of the requests met their SLO.
GOOD_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep: where it is stored, what was varied (scheduler, rate, seed, any others), and its summary."""

    folder: Path
    axes: Mapping[str, Any]
    summary: Mapping[str, Any]

    @property
    def scheduler(self) -> str:
        """The label of the policy."""
        return str(self.axes.get("scheduler", "run"))

    @property
    def rate(self) -> float | None:
        """Requests a second that were offered; None where the arrivals were taken as they are."""
        rate = self.axes.get("rate")
        return None if rate is None else float(rate)

    def value(self, *path: str) -> float | None:
        """A figure of the summary by its path, such as ("ttft_s", "p99"); None where it is not known."""
        found: Any = self.summary
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return None if found is None else float(found)


@dataclass(frozen=True, slots=True)
class Series:
    """What is one line in a figure: a scheduler, with the values of further axes that vary."""

    label: str
    look: Look


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds. `half_width` is half of its 95 % confidence interval, None for a single seed.

    `smallest` is the lowest value of a seed.
    """

    mean: float
    half_width: float | None
    count: int
    smallest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Student's t: t(n - 1) * s / sqrt(n) on both sides of the mean."""
        count = len(values)
        if count == 1:
            return cls(values[0], None, 1, values[0])
        df = count - 1
        # Beyond the table: the Cornish-Fisher expansion around the normal quantile, exact to four digits there.
        t = T_95[df - 1] if df <= len(T_95) else 1.96 + 2.372 / df + 2.82 / df**2
        half_width = t * np.std(values, ddof=1) / math.sqrt(count)
        return cls(float(np.mean(values)), float(half_width), count, min(values))


class Study:
    """All points of a sweep.

    Series are in the order in which they first appear among the points; rates go up, and None (arrivals as they are)
    is first.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        if not points:
            raise InputError("there is nothing to report: no run of the sweep has finished")
        self.points = tuple(points)
        names = sorted({name for point in points for name in point.axes} - {"scheduler", "rate", "seed"})
        self._extra_axes = [name for name in names if len({str(point.axes.get(name)) for point in points}) > 1]
        self.series = self._series()
        self.rates = tuple(
            sorted({point.rate for point in points}, key=lambda rate: -math.inf if rate is None else rate)
        )

    def label(self, point: Point) -> str:
        """The label of the series that the point belongs to."""
        return ", ".join(filter(None, (point.scheduler, self._extra(point))))

    def at(self, series: Series, rate: float | None) -> list[Point]:
        """The points of a series at a rate: one a seed."""
        return self._cells.get((series.label, rate), [])

    def estimate(self, series: Series, rate: float | None, *path: str) -> Estimate | None:
        """A figure of the summaries, over seeds; None where no seed has it."""
        values = [value for point in self.at(series, rate) if (value := point.value(*path)) is not None]
        return Estimate.of(values) if values else None

    @property
    def num_seeds(self) -> int:
        """The most seeds that any series has at any rate."""
        return max(len(points) for points in self._cells.values())

    def slo_target(self, name: str) -> float | None:
        """The target ("ttft_s" or "tpot_s") of all requests; None if there is none, or if some have their own."""
        targets = {point.value("goodput", "slo", name) for point in self.points}
        own = any(point.value("goodput", "requests_with_own_targets") for point in self.points)
        return targets.pop() if len(targets) == 1 and not own else None

    @property
    def has_slo(self) -> bool:
        """Whether any run had a target to meet."""
        return any(point.value("goodput", "share") is not None for point in self.points)

    @cached_property
    def priorities(self) -> tuple[str, ...]:
        """The priorities of all runs that tell several apart, most urgent (lowest) first."""
        return tuple(sorted({name for point in self.points for name in point.summary.get("by_priority", ())}, key=int))

    @property
    def noun(self) -> str:
        """What to call a series in a sentence."""
        return "scheduler" if len({point.scheduler for point in self.points}) == len(self.series) else "variant"

    def is_good(self, series: Series, rate: float | None) -> bool:
        """Whether GOOD_SHARE of the requests met their SLO; not so where there was none to meet."""
        share = self.estimate(series, rate, "goodput", "share")
        return share is not None and share.mean >= GOOD_SHARE

    def sustained_rate(self, series: Series) -> float | None:
        """The highest rate such that, there and at all lower ones, GOOD_SHARE of the requests met their SLO, if any."""
        sustained = None
        for rate in self.rates:
            if not self.is_good(series, rate):
                break
            sustained = rate
        return sustained

    @cached_property
    def knee(self) -> float | None:
        """The rate to look into closely: the lowest at which at least half of the series no longer keep up.

        A series falls behind where it misses GOOD_SHARE; without an SLO, where its P99 of TTFT is over five times that
        at the lowest rate. When most keep up everywhere, it is the highest rate.
        """
        for rate in self.rates:
            behind = sum(not self._keeps_up(series, rate) for series in self.series)
            if 2 * behind >= len(self.series):
                return rate
        return self.rates[-1]

    def _keeps_up(self, series: Series, rate: float | None) -> bool:
        if self.has_slo:
            return self.is_good(series, rate)
        late, early = (self.estimate(series, r, "ttft_s", "p99") for r in (rate, self.rates[0]))
        return late is None or early is None or late.mean <= 5 * early.mean

    def missing(self) -> list[str]:
        """Combinations of series, rate and seed that the other points make one expect, but that are not there."""
        seeds = sorted({str(point.axes["seed"]) for point in self.points if "seed" in point.axes})
        absent = []
        for series in self.series:
            for rate in self.rates:
                there = {str(point.axes.get("seed")) for point in self.at(series, rate)}
                if not there:
                    absent.append(f"{series.label} at {rate_text(rate)}")
                else:
                    absent += [
                        f"{series.label} at {rate_text(rate)}, seed {seed}" for seed in seeds if seed not in there
                    ]
        return absent

    @cached_property
    def _cells(self) -> dict[tuple[str, float | None], list[Point]]:
        cells: dict[tuple[str, float | None], list[Point]] = {}
        for point in self.points:
            cells.setdefault((self.label(point), point.rate), []).append(point)
        return cells

    def _extra(self, point: Point) -> str:
        return ", ".join(f"{name}={point.axes[name]}" for name in self._extra_axes if point.axes.get(name) is not None)

    def _series(self) -> tuple[Series, ...]:
        schedulers = list(dict.fromkeys(point.scheduler for point in self.points))
        extras = list(dict.fromkeys(self._extra(point) for point in self.points))
        looks: dict[str, Look] = {}
        for point in self.points:
            first, second = schedulers.index(point.scheduler), extras.index(self._extra(point))
            # A single scheduler leaves the colours to what else varies.
            looks[self.label(point)] = Look(first, second) if len(schedulers) > 1 else Look(second, 0)
        return tuple(Series(label, look) for label, look in looks.items())


def rate_text(rate: float | None) -> str:
    """A rate for a sentence."""
    if rate is None:
        return "the workload's own pace"
    return f"{rate:g} request/s" if rate == 1 else f"{rate:g} requests/s"
