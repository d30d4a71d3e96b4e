"""What figures need of the runs themselves, beyond their summaries: read once, run by run, and kept small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments import metrics
from experiments.columns import Floats, Ints, StepColumns
from experiments.storage import StoredRun, read_run
from schedulers.errors import InputError

if TYPE_CHECKING:
    from experiments.report.study import Study

#: How many intervals a run's time is cut into for a timeline.
TIMELINE_INTERVALS = 300


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
    prefill_tokens: Ints
    decode_tokens: Ints
    timeline: Timeline

    @classmethod
    def of(cls, run: StoredRun) -> Sample:
        """What figures need of a run."""
        return cls(
            ttft_s=_existing(metrics.ttft_s(run.requests)),
            tpot_s=_existing(metrics.tpot_s(run.requests)),
            itl_s=quantiles(metrics.itl_s(run.requests), 1001),
            prefill_tokens=run.steps.num_prefill_tokens,
            decode_tokens=run.steps.num_decode_tokens,
            timeline=timeline_of(run.steps),
        )

    @classmethod
    def pooled(cls, samples: Sequence[Sample]) -> Sample:
        """Several seeds as one."""
        return cls(
            np.concatenate([sample.ttft_s for sample in samples]),
            np.concatenate([sample.tpot_s for sample in samples]),
            np.concatenate([sample.itl_s for sample in samples]),
            np.concatenate([sample.prefill_tokens for sample in samples]),
            np.concatenate([sample.decode_tokens for sample in samples]),
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
                    found.append(Sample.of(read_run(point.folder)))
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


def timeline_of(steps: StepColumns) -> Timeline:
    """The run in TIMELINE_INTERVALS equal intervals, from time zero to its last step.

    Of a cluster: the requests that wait or run at all engines together, and the mean usage of their memories.
    """
    end = float(steps.end_s.max(initial=0.0)) or 1.0
    borders = np.linspace(0, end, TIMELINE_INTERVALS + 1)
    engines = [steps.of_replica(replica) for replica in np.unique(steps.replica).tolist()]
    values = np.zeros((3, TIMELINE_INTERVALS))
    for engine in engines:
        means = _means(engine, borders)
        values += [means(engine.num_waiting), means(engine.num_running), means(engine.kv_usage) / len(engines)]
    return Timeline((borders[:-1] + borders[1:]) / 2, *values)


def _means(steps: StepColumns, borders: Floats) -> Callable[[Floats | Ints], Floats]:
    """Makes of a value of each step of one engine its mean over the time in steps between each two borders."""
    # The integral of a value over the time in steps is piecewise linear, with a corner where a step starts or ends.
    corners = np.maximum.accumulate(np.column_stack((steps.start_s, steps.end_s)).ravel())
    durations = corners[1::2] - corners[::2]

    def integral(values: Floats | Ints) -> Floats:
        heights = np.repeat(np.cumsum(values * durations), 2)
        heights[::2] -= values * durations
        return np.diff(np.interp(borders, corners, heights))

    busy = integral(np.ones(len(steps)))

    def mean(values: Floats | Ints) -> Floats:
        return np.divide(integral(values), busy, out=np.zeros(len(busy)), where=busy > 1e-12)

    return mean


def _existing(values: Floats) -> Floats:
    return values[~np.isnan(values)]
