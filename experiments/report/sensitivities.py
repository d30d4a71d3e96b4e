"""The figures of `experiment=sensitivity`: a chart an axis, a panel a metric, a line a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.report.axes import explodes, limits, scale, target_line
from experiments.report.charts import Chart, Panel
from experiments.report.overlaps import reveal
from experiments.report.style import Look
from experiments.sensitivity import METRICS, Result, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from schedulers import SLO

#: Metrics that have a panel.
SHOWN = ("TTFT P99", "TPOT P99", "within SLO")


def sensitivity_charts(results: Sequence[Result], num_seeds: int, slo: SLO) -> list[Chart]:
    """One chart for each key that was varied."""
    labels = list(dict.fromkeys(result.variant.scheduler for result in results))
    looks = {label: Look(index) for index, label in enumerate(labels)}
    targets = {"TTFT P99": slo.ttft_s, "TPOT P99": slo.tpot_s and slo.tpot_s * 1e3, "within SLO": None}
    bands = f" Bands: 95 % confidence intervals over {num_seeds} seeds (Student's t)." if num_seeds > 1 else ""
    charts = []
    for axis in dict.fromkeys(result.variant.axis for result in results):
        here = [result for result in results if result.variant.axis == axis]
        panels = [
            Panel(f"{name} ({METRICS[name][0]})", partial(_draw, here, looks, axis, name, targets[name]))
            for name in SHOWN
        ]
        charts.append(
            Chart(
                name=f"sensitivity_{axis.replace('.', '_')}",
                title=f"What {axis} does",
                caption=f"All else stays as it is; the hollow marker is the point that is varied around.{bands}",
                panels=panels,
                legend=looks,
            )
        )
    return charts


def _draw(
    results: Sequence[Result], looks: dict[str, Look], axis: str, metric: str, target: float | None, axes: Axes
) -> None:
    values = list(dict.fromkeys(result.variant.value for result in results))
    numeric = all(is_number(value) for value in values)
    places = {value: float(value) if numeric else float(i) for i, value in enumerate(values)}
    shown, lines = [], []
    for series, (label, look) in enumerate(looks.items()):
        found = [(r.variant, e) for r in results if r.variant.scheduler == label and (e := r.figures[metric])]
        found.sort(key=lambda pair: places[pair[0].value])
        aside = 0.0 if numeric else 0.14 * (series - (len(looks) - 1) / 2)  # or one series would hide another
        xs = [places[variant.value] + aside for variant, _ in found]
        means = [estimate.mean for _, estimate in found]
        (line,) = axes.plot(xs, means, color=look.color, linestyle=look.dash if numeric else "none")
        lines.append((look, line))
        halves = [estimate.half_width or 0.0 for _, estimate in found]
        for x, mean, (variant, _) in zip(xs, means, found, strict=True):
            face = "white" if variant.is_base else look.color
            axes.plot(x, mean, marker=look.marker, color=look.color, markerfacecolor=face)
        # Zero has no place on a logarithmic scale, nor has a share above 100 %.
        lower = [max(mean - half, 0.01 * mean) for mean, half in zip(means, halves, strict=True)]
        upper = [
            min(mean + half, 100.0 if metric == "within SLO" else mean + half)
            for mean, half in zip(means, halves, strict=True)
        ]
        if numeric:
            axes.fill_between(xs, lower, upper, color=look.color, alpha=0.13, linewidth=0)
        else:
            axes.vlines(xs, lower, upper, color=look.color, linewidth=1.0)
        shown += means
    if numeric:
        scale(axes, "x", list(places.values()), log=explodes(list(places.values())))
        if explodes(list(places.values())):
            _ticks_at(axes, sorted(places.values()))
    else:
        axes.set_xticks(list(places.values()), [str(value) for value in values], rotation=20)
        axes.set_xlim(-0.5, len(values) - 0.5)
    if metric == "within SLO":
        axes.set_ylim(0, 104)
    else:
        scale(axes, "y", shown, log=explodes(shown))
        target_line(axes, "y", target, "SLO")
    if numeric:
        reveal(axes, lines)
    axes.set_xlabel(axis)
    axes.set_ylabel(f"{metric} ({METRICS[metric][0]})")


def _ticks_at(axes: Axes, values: Sequence[float]) -> None:
    """Ticks where something was tried, as long as they have room."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = limits(values, log=True)
    if len(values) <= 7 and high > low > 0:
        axes.xaxis.set_major_locator(FixedLocator(list(values)))
        axes.xaxis.set_minor_locator(NullLocator())
