"""The highest arrival rate that meets an SLO, by bisection; every step of it decides with confidence or not at all.

At a rate, runs of several seeds say how far a criterion is met. Its mean over seeds has a 95 % confidence interval by
Student's t; latencies, whose tails are long near saturation, enter as logarithms, so that theirs is an interval of the
geometric mean. A rate is *met* when every criterion's interval lies on the right side of its target, and *missed* when
any lies on the wrong side. Where an interval straddles the target, more seeds are asked for, up to a limit; beyond it
the rate is *undecided*: the bisection goes on by the means, and the interval of the capacity takes the rate in.

Each interval errs once in twenty times, on one side once in forty; looking again with more seeds adds to that, and a
search looks some ten times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from experiments.report.study import Estimate


@dataclass(frozen=True, slots=True)
class Criterion:
    """A figure of a run's summary and what it must come to: a latency at most, a share at least `target`."""

    name: str
    path: tuple[str, str]
    target: float
    is_latency: bool

    def of(self, summary: Mapping[str, Any]) -> float | None:
        """The figure; None where the run has none, such as the TPOT of outputs of one token, which binds nobody."""
        value = summary[self.path[0]][self.path[1]]
        if value is None and not summary["completed"]:
            return math.inf if self.is_latency else 0.0
        return None if value is None else float(value)


class Verdict(Enum):
    """What an evaluation says of a rate."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Interval:
    """A criterion at a rate: the mean over seeds and its 95 % confidence interval, in the unit of the target."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, criterion: Criterion, values: Sequence[float]) -> Interval:
        """Of the values of at least two seeds."""
        if not all(0 < value < math.inf for value in values) and criterion.is_latency:
            return cls(math.inf, math.inf, math.inf)  # a run in which nobody was served
        estimate = Estimate.of([math.log(value) for value in values] if criterion.is_latency else values)
        half = estimate.half_width or 0.0
        ends = (estimate.mean, estimate.mean - half, estimate.mean + half)
        return cls(*(map(math.exp, ends) if criterion.is_latency else ends))

    def verdict(self, criterion: Criterion) -> Verdict:
        """On which side of the target it lies."""
        best, worst = (self.low, self.high) if criterion.is_latency else (-self.high, -self.low)
        target = criterion.target if criterion.is_latency else -criterion.target
        return Verdict.MET if worst <= target else Verdict.MISSED if best > target else Verdict.UNDECIDED

    def leans(self, criterion: Criterion) -> bool:
        """Whether the mean itself meets the target."""
        return self.mean <= criterion.target if criterion.is_latency else self.mean >= criterion.target


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What runs of several seeds said of a rate.

    Attributes:
        intervals: by the name of the criterion; one that no run has a figure for is left out.
        is_good: whether the rate counts as one that meets the SLO: by the verdict or, if undecided, by the means.
    """

    rate: float
    num_seeds: int
    intervals: dict[str, Interval]
    verdict: Verdict
    is_good: bool

    @classmethod
    def of(cls, rate: float, criteria: Sequence[Criterion], summaries: Sequence[Mapping[str, Any]]) -> Evaluation:
        """From the summaries of one run a seed."""
        intervals, verdicts, leans = {}, [Verdict.MET], [True]
        for criterion in criteria:
            values = [value for summary in summaries if (value := criterion.of(summary)) is not None]
            if len(values) > 1:
                interval = intervals[criterion.name] = Interval.of(criterion, values)
                verdicts.append(interval.verdict(criterion))
                leans.append(interval.leans(criterion))
        verdict = next(kind for kind in (Verdict.MISSED, Verdict.UNDECIDED, Verdict.MET) if kind in verdicts)
        is_good = all(leans) if verdict is Verdict.UNDECIDED else verdict is Verdict.MET
        return cls(rate, len(summaries), intervals, verdict, is_good)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """Where a search looks, and how closely.

    Attributes:
        lowest: below it nothing is tried, nor above `highest`; requests a second.
        precision: the bisection ends when the two rates it lies between differ by no more than this share.
        min_seeds: of an evaluation at first, and added while it is undecided; at least 2.
        max_seeds: of an evaluation at most.
    """

    lowest: float
    highest: float
    precision: float
    min_seeds: int
    max_seeds: int


class Search:
    """One scheduler's capacity, step by step: make the runs that are `wanted`, hand over their summaries, repeat.

    From its first rate the search doubles and halves until one rate is met and one is missed. Then it goes on at the
    geometric mean of the highest rate that is good and the lowest that is not; and where rates stayed undecided, at
    those between them and the nearest decided ones, half as closely. Rates have three digits, so that searches share
    points. All this takes for granted that who misses at a rate misses at all higher ones.

    Attributes:
        evaluations: the last of every rate, in the order in which the rates were tried.
        error: why the search was given up; "" if it was not.
    """

    def __init__(self, criteria: Sequence[Criterion], bounds: Bounds, first_rate: float) -> None:
        self.criteria = tuple(criteria)
        self.bounds = bounds
        self.evaluations: dict[float, Evaluation] = {}
        self.error = ""
        self._summaries: list[Mapping[str, Any]] = []
        self._rate: float | None = rounded(min(max(first_rate, bounds.lowest), bounds.highest))

    @property
    def wanted(self) -> list[tuple[float, int]]:
        """(rate, seed) of the runs to make next, seeds counted from 0; none when the search has ended."""
        if self._rate is None:
            return []
        done = len(self._summaries)
        last = min(done + self.bounds.min_seeds, self.bounds.max_seeds)
        return [(self._rate, seed) for seed in range(done, last)]

    def learn(self, summaries: Sequence[Mapping[str, Any]]) -> Evaluation:
        """Take the summaries of the runs that were wanted, in that order; return what they say of their rate."""
        rate = self._rate
        if rate is None:
            raise ValueError("the search has ended")
        self._summaries += summaries
        evaluation = self.evaluations[rate] = Evaluation.of(rate, self.criteria, self._summaries)
        if evaluation.verdict is not Verdict.UNDECIDED or len(self._summaries) >= self.bounds.max_seeds:
            self._summaries = []
            self._rate = self._next_rate()
        return evaluation

    def give_up(self, error: str) -> None:
        """End the search: a run failed."""
        self.error, self._rate = error, None

    @property
    def capacity(self) -> float | None:
        """The highest rate that is good and below every rate that is not; None if there is none."""
        return self._bracket()[0]

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The highest rate that is met and the lowest that is missed, each decided; None where the search saw none."""
        missed = min(self._rates(Verdict.MISSED), default=None)
        met = [rate for rate in self._rates(Verdict.MET) if missed is None or rate < missed]
        return max(met, default=None), missed

    def _next_rate(self) -> float | None:
        """Out until one rate is met and one is missed, then in between good and bad, then to the interval's ends."""
        bounds, (met, missed) = self.bounds, self.interval
        if met is None and (least := min(self.evaluations)) > bounds.lowest:
            return rounded(max(least / 2, bounds.lowest))
        if missed is None and (most := max(self.evaluations)) < bounds.highest:
            return rounded(min(most * 2, bounds.highest))
        undecided = self._rates(Verdict.UNDECIDED)
        ends = (met, min(undecided, default=None)), (max(undecided, default=None), missed)
        further = (_between(*end, 2 * bounds.precision) for end in ends)
        return _between(*self._bracket(), bounds.precision) or next(filter(None, further), None)

    def _bracket(self) -> tuple[float | None, float | None]:
        """The rates that the capacity lies between, by verdicts and means."""
        bad = min((rate for rate, evaluation in self.evaluations.items() if not evaluation.is_good), default=None)
        good = [rate for rate, e in self.evaluations.items() if e.is_good and (bad is None or rate < bad)]
        return max(good, default=None), bad

    def _rates(self, verdict: Verdict) -> list[float]:
        return [rate for rate, evaluation in self.evaluations.items() if evaluation.verdict is verdict]


def _between(low: float | None, high: float | None, precision: float) -> float | None:
    """The rate in the middle of two, unless they are as close as they need to be."""
    if low is None or high is None or high <= low * (1 + precision):
        return None
    middle = rounded(math.sqrt(low * high))
    return middle if low < middle < high else None


def rounded(rate: float) -> float:
    """To three significant digits."""
    return float(f"{rate:.3g}")
