"""What charts of known results have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bars(values: Mapping[str, float], looks: Mapping[str, Look], label: str, axes: Axes, form: str = "{:.3g}") -> None:
    """A bar for each, from the top, with its value written at its end."""
    rows = range(len(values))
    axes.barh(rows, list(values.values()), color=[looks[name].color for name in values], height=0.6)
    for row, value in zip(rows, values.values(), strict=True):
        axes.annotate(
            form.format(value), (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.set_yticks(rows, list(values))
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, 1.18 * max(values.values()) or 1.0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
