"""Latency by urgency: what requests of each priority wait under each scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.report.axes import explodes
from experiments.report.charts import Chart, Panel
from experiments.report.curves import Curve, against, interval_text, series_legend
from experiments.report.study import Series, Study, rate_text
from experiments.report.verdict import seconds

#: Tails that differ by less than this factor may well do so by chance.
VISIBLE = 1.25


@dataclass(frozen=True, slots=True)
class Gap:
    """How much longer the least urgent wait than the most urgent, in P99 of TTFT: the smallest factor of any seed."""

    factor: float
    series: Series
    rate: float | None


def priority_chart(study: Study) -> Chart:
    """TTFT against rate, a column a priority, all on one scale."""
    statistics = (("p50", "P50"), ("p99", "P99"))
    shown = [
        value
        for priority in study.priorities
        for key, _ in statistics
        for value in Curve(study, ("by_priority", priority, "ttft_s", key), "").means()
    ]
    target = study.slo_target("ttft_s")
    panels = []
    for key, statistic in statistics:
        for priority in study.priorities:
            path = ("by_priority", priority, "ttft_s", key)
            curve = Curve(study, path, f"TTFT {statistic} (s)", shown=shown, log=explodes(shown), target=target)
            panels.append(Panel(f"TTFT {statistic}, {_name(study, priority)}", curve.draw))
    return Chart(
        "priorities",
        "Latency by urgency" if len(study.rates) > 1 else f"Latency by urgency {against(study)}",
        f"TTFT of the requests of each priority alone; lower numbers are more urgent. {_finding(study)} "
        f"{interval_text(study)}",
        panels,
        series_legend(study),
        columns=min(3, len(study.priorities)),
    )


def widest_gap(study: Study) -> Gap | None:
    """Where priorities matter most; None if no series has requests of both ends that completed."""
    gaps = [
        Gap(min(factors), series, rate)
        for series in study.series
        for rate in study.rates
        if (factors := _factors(study, series, rate))
    ]
    return max(gaps, key=lambda gap: gap.factor, default=None)


def _factors(study: Study, series: Series, rate: float | None) -> list[float]:
    first, last = (("by_priority", study.priorities[end], "ttft_s", "p99") for end in (0, -1))
    pairs = ((point.value(*first), point.value(*last)) for point in study.at(series, rate))
    return [slow / fast for fast, slow in pairs if fast and slow]


def _finding(study: Study) -> str:
    gap = widest_gap(study)
    if gap is None or gap.factor < VISIBLE:
        tried = "any rate that was tried" if len(study.rates) > 1 else rate_text(study.rates[0])
        return (
            f"There is next to nothing to see here: at {tried}, no scheduler serves the most urgent sooner than the "
            "least urgent in every seed. Where no queue builds up, everyone is served at once, whatever their priority."
        )
    waits = []
    for priority in (study.priorities[0], study.priorities[-1]):
        estimate = study.estimate(gap.series, gap.rate, "by_priority", priority, "ttft_s", "p99")
        if estimate is not None:
            waits.append(f"{seconds(estimate.mean)} for priority {priority}")
    return (
        f"The gap is widest with {gap.series.label} at {rate_text(gap.rate)}: P99 {' and '.join(waits)}. Where no "
        "queue builds up, or the scheduler does not look at priorities, any gap is chance."
    )


def _name(study: Study, priority: str) -> str:
    ends = {study.priorities[0]: "most urgent", study.priorities[-1]: "least urgent"}
    return f"priority {priority}" + (f" ({ends[priority]})" if priority in ends else "")
