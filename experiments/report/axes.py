"""What axes of many figures have in common: scales, ticks, and the line of a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.report.style import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A scale is logarithmic when its largest value is more than this many times its smallest.
EXPLODES = 12


def explodes(values: Sequence[float]) -> bool:
    """Whether values differ so much that a linear scale would hide the small ones."""
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > EXPLODES * min(positive)


def limits(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    """Where an axis should start and end to show these values, which are not negative."""
    positive = [value for value in values if value > 0]
    if not positive:
        return 0.0, 1.0
    if log:
        return min(positive) * 0.7, max(positive) * 1.5
    return 0.0, max(positive) * 1.1


def scale(axes: Axes, direction: str, values: Sequence[float], *, log: bool) -> None:
    """Make an axis ("x" or "y") show these values, linearly or logarithmically, with plain numbers at its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if direction == "x" else axes.yaxis
    low, high = limits(values, log=log)
    if log and high > low > 0:
        axes.set(**{f"{direction}scale": "log"})
        subs = (1.0,) if high / low > 1000 else (1.0, 3.0) if high / low > 100 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e5 else f"{value:.0e}"))
    axes.set(**{f"{direction}lim": (low, high)})


def target_line(axes: Axes, direction: str, value: float | None, text: str) -> None:
    """A dashed line at an SLO's target, if it lies within the axis."""
    low, high = axes.get_xlim() if direction == "x" else axes.get_ylim()
    if value is None or not low <= value <= high:
        return
    line = axes.axvline if direction == "x" else axes.axhline
    line(value, color=MUTED[0], linewidth=1, linestyle=(0, (3, 3)))
    place = (value, 0.03) if direction == "x" else (0.01, value)
    transform = axes.get_xaxis_transform() if direction == "x" else axes.get_yaxis_transform()
    axes.annotate(
        text,
        place,
        xycoords=transform,
        xytext=(-3, 2) if direction == "x" else (3, 2),
        ha="right" if direction == "x" else "left",
        textcoords="offset points",
        fontsize=8.5,
        color=INK[0],
    )


def rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    """The x axis of figures against the offered rate."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xlabel("offered rate (requests/s)")
    if explodes(rates):
        axes.set_xscale("log")
    if len(rates) <= 7:
        axes.xaxis.set_major_locator(FixedLocator(list(rates)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
