"""What figures need of the runs themselves, beyond their summaries: read once, run by run, and kept small."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from experiments.columns import Floats, StepColumns
from experiments.metrics import Histogram, add_histograms, token_histogram
from experiments.storage import OpenRun, open_run
from experiments.summary import LATENCIES
from schedulers.errors import InputError

if TYPE_CHECKING:
    from experiments.report.study import Study

#: How many intervals a run's time is cut into for a timeline.
TIMELINE_INTERVALS = 300

#: More values of a latency than these are thinned out.
MOST_VALUES = 200_000


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Means over the steps of each interval, zero where the engine was idle. Times are the intervals' middles."""

    time_s: Floats
    waiting: Floats
    running: Floats
    kv_usage: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Of one run, or of several seeds together: latencies, tokens per step, and the timeline of the first."""

    ttft_s: Floats
    tpot_s: Floats
    #: At most 1,001 quantiles of each run's inter-token latencies.
    itl_s: Floats
    prefill_tokens: Histogram
    decode_tokens: Histogram
    timeline: Timeline

    @classmethod
    def of(cls, run: OpenRun) -> Sample:
        """What figures need of a run, read piece by piece."""
        # Of more values than can be told apart in a figure, every n-th is taken, in order of size.
        every = {name: -(-run.summary[name]["count"] // MOST_VALUES) or 1 for name in ("ttft_s", "tpot_s", "itl_s")}
        taken: dict[str, list[Floats]] = {name: [np.empty(0)] for name in every}
        for requests in run.requests:
            for name, values in taken.items():
                values.append(_thinned(LATENCIES[name](requests), every[name]))
        prefill_tokens = decode_tokens = token_histogram(np.empty(0, dtype=np.int64))
        for steps in run.steps:
            prefill_tokens = add_histograms(prefill_tokens, token_histogram(steps.num_prefill_tokens))
            decode_tokens = add_histograms(decode_tokens, token_histogram(steps.num_decode_tokens))
        return cls(
            ttft_s=np.concatenate(taken["ttft_s"]),
            tpot_s=np.concatenate(taken["tpot_s"]),
            itl_s=quantiles(np.concatenate(taken["itl_s"]), 1001),
            prefill_tokens=prefill_tokens,
            decode_tokens=decode_tokens,
            timeline=timeline_of(run.steps),
        )

    @classmethod
    def pooled(cls, samples: Sequence[Sample]) -> Sample:
        """Several seeds as one."""
        return cls(
            np.concatenate([sample.ttft_s for sample in samples]),
            np.concatenate([sample.tpot_s for sample in samples]),
            np.concatenate([sample.itl_s for sample in samples]),
            reduce(add_histograms, [sample.prefill_tokens for sample in samples]),
            reduce(add_histograms, [sample.decode_tokens for sample in samples]),
            samples[0].timeline,
        )


#: Samples by the label of the series and the rate.
Samples = dict[tuple[str, float | None], Sample]


def load_samples(study: Study) -> tuple[Samples, list[str]]:
    """The samples of every series at every rate, and what could not be read, in words."""
    samples: Samples = {}
    unreadable = []
    for series in study.series:
        for rate in study.rates:
            found = []
            for point in study.at(series, rate):
                try:
                    found.append(Sample.of(open_run(point.folder)))
                except InputError as error:
                    unreadable.append(str(error))
            if found:
                samples[series.label, rate] = Sample.pooled(found)
    return samples, unreadable


def quantiles(values: Floats, most: int) -> Floats:
    """The values in order, or, when there are more than `most`, so many evenly spaced quantiles of them."""
    if len(values) <= most:
        return np.sort(values)
    return np.quantile(values, np.linspace(0, 1, most))


def timeline_of(steps: Iterable[StepColumns]) -> Timeline:
    """The run in TIMELINE_INTERVALS equal intervals, from time zero to its last step; its pieces are walked twice.

    Of a cluster: the requests that wait or run at all engines together, and the mean usage of their memories.
    """
    end = max((float(piece.end_s.max(initial=0.0)) for piece in steps), default=0.0) or 1.0
    borders = np.linspace(0, end, TIMELINE_INTERVALS + 1)
    #: By engine: the time in steps, and the integrals of the three values over it, in each interval.
    integrals: defaultdict[int, Floats] = defaultdict(lambda: np.zeros((4, TIMELINE_INTERVALS)))
    for piece in steps:
        for replica in np.unique(piece.replica).tolist():
            integrals[replica] += _integrals(piece.of_replica(replica), borders)
    values = np.zeros((3, TIMELINE_INTERVALS))
    for busy, *others in integrals.values():
        values += np.divide(others, busy, out=np.zeros_like(values), where=busy > 1e-12)
    waiting, running, kv_usage = values
    return Timeline((borders[:-1] + borders[1:]) / 2, waiting, running, kv_usage / max(len(integrals), 1))


def _integrals(steps: StepColumns, borders: Floats) -> Floats:
    """Of one engine's steps: of 1, waiting, running and KV usage, over the time in steps between each two borders."""
    # An integral over the time in steps is piecewise linear, with a corner where a step starts or ends.
    corners = np.maximum.accumulate(np.column_stack((steps.start_s, steps.end_s)).ravel())
    durations = corners[1::2] - corners[::2]
    rows = []
    for values in (np.ones(len(steps)), steps.num_waiting, steps.num_running, steps.kv_usage):
        heights = np.repeat(np.cumsum(values * durations), 2)
        heights[::2] -= values * durations
        rows.append(np.diff(np.interp(borders, corners, heights)))
    return np.array(rows)


def _thinned(values: Floats, every: int) -> Floats:
    """Every n-th of the values that exist, in order of size; all, in their own order, for n = 1."""
    values = values[~np.isnan(values)]
    return values if every == 1 else np.sort(values)[every // 2 :: every]
