"""The figure of `experiment=capacity`: what was tried, what it came to, and where each scheduler's limit lies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from experiments.capacity_search import Criterion, Search
from experiments.report.axes import explodes, scale, target_line
from experiments.report.charts import Chart, Panel
from experiments.report.style import MUTED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A latency's axis shows up to so many times its target, and down to so small a part of it.
AROUND_TARGET = 30.0


def capacity_chart(searches: Mapping[str, Search]) -> Chart:
    """The capacities with their intervals, then every criterion against the rate."""
    looks = {label: Look(index) for index, label in enumerate(searches)}
    criteria = next(iter(searches.values())).criteria
    panels = [Panel("Capacity (requests/s)", partial(_draw_capacities, searches, looks))]
    panels += [Panel(f"{c.name} against rate", partial(_draw_evaluations, searches, looks, c)) for c in criteria]
    return Chart(
        name="capacity",
        title="Capacity under an SLO",
        caption="Left: the highest rate that meets the SLO; whiskers end at the nearest rates that meet it, or miss "
        "it, with confidence. Then: every rate that was tried, with 95 % confidence intervals over seeds (Student's "
        "t; of latencies, in logarithms); filled where the SLO is met as a whole, hollow where it is not. Vertical "
        "lines are the capacities.",
        panels=panels,
        legend=looks,
    )


def _draw_capacities(searches: Mapping[str, Search], looks: Mapping[str, Look], axes: Axes) -> None:
    shown = []
    for row, (label, search) in enumerate(searches.items()):
        capacity = search.capacity
        if capacity is None or search.error:
            text = "failed" if search.error else f"below {search.bounds.lowest:g}"
            axes.text(0.02, row, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED[0], fontsize=9)
            continue
        low, high = search.interval
        whiskers = [[capacity - (low or 0.0)], [(high or capacity) - capacity]]
        look = looks[label]
        axes.errorbar(capacity, row, xerr=whiskers, color=look.color, marker=look.marker, markersize=8, capsize=4)
        shown += [capacity, high or capacity]
        axes.annotate(
            f"{capacity:g}", (capacity, row), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=9
        )
    scale(axes, "x", shown, log=False)
    axes.set_yticks(range(len(searches)), [label.replace(" ", "\n") for label in searches])
    axes.set_ylim(len(searches) - 0.4, -0.6)
    axes.set_xlabel("arrival rate (requests/s)")


def _draw_evaluations(
    searches: Mapping[str, Search], looks: Mapping[str, Look], criterion: Criterion, axes: Axes
) -> None:
    factor, unit = _unit(criterion)
    target = criterion.target * factor
    lowest, highest = (target / AROUND_TARGET, target * AROUND_TARGET) if criterion.is_latency else (0.0, 100.0)
    rates, values = [], [target]
    for label, search in searches.items():
        look = looks[label]
        tried = sorted(search.evaluations.values(), key=lambda evaluation: evaluation.rate)
        found = [(e, e.intervals[criterion.name]) for e in tried if criterion.name in e.intervals]
        means = [min(max(interval.mean * factor, lowest), highest) for _, interval in found]
        xs = [evaluation.rate for evaluation, _ in found]
        axes.plot(xs, means, color=look.color, linewidth=1.0, alpha=0.5)
        for (evaluation, interval), mean in zip(found, means, strict=True):
            low, high = (min(max(end * factor, lowest), highest) for end in (interval.low, interval.high))
            axes.errorbar(
                evaluation.rate,
                mean,
                yerr=[[max(mean - low, 0.0)], [max(high - mean, 0.0)]],
                color=look.color,
                marker=look.marker,
                markerfacecolor=look.color if evaluation.is_good else "none",
                elinewidth=1.0,
            )
        if search.capacity is not None:
            axes.axvline(search.capacity, color=look.color, linewidth=1.2, linestyle=(0, (4, 2)), alpha=0.8)
        rates += xs
        values += means
    scale(axes, "x", rates, log=explodes(rates))
    if criterion.is_latency:
        scale(axes, "y", values, log=explodes(values))
    else:
        axes.set_ylim(0, 104)
    axes.set_xlabel("arrival rate (requests/s)")
    axes.set_ylabel(f"{criterion.name} ({unit})")
    target_line(axes, "y", target, "SLO")


def _unit(criterion: Criterion) -> tuple[float, str]:
    """What a criterion is drawn in, and how many of it are one."""
    if not criterion.is_latency:
        return 100.0, "%"
    return (1.0, "s") if criterion.path[0] == "ttft_s" else (1e3, "ms")
