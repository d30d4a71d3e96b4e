"""The chart of one workload in both worlds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.comparison import METRICS, Compared
from experiments.report.axes import explodes, scale
from experiments.report.charts import Chart, Panel
from experiments.report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENGINE, SIMULATOR = Look(0), Look(1)

#: Metrics that have a panel.
SHOWN = ("TTFT P50", "TPOT P50", "E2E P50", "TTFT P90", "TPOT P90", "E2E P90")


def compared_chart(compared: Sequence[Compared]) -> Chart:
    """A row for each policy and load: the range of the engine's runs, and the simulator's prediction."""
    runs = max(len(runs) for item in compared for runs in item.engine.values())
    return Chart(
        name="compare",
        title="The engine and the simulator",
        caption=f"Bars span the engine's {runs} runs; circles are their median, squares the simulator's prediction.",
        panels=[
            Panel(
                f"{metric} ({METRICS[metric][0]})",
                partial(_draw, [item for item in compared if metric in item.engine], metric),
            )
            for metric in SHOWN
            if any(metric in item.engine for item in compared)
        ],
        legend={"engine": ENGINE, "simulator": SIMULATOR},
    )


def _draw(compared: Sequence[Compared], metric: str, axes: Axes) -> None:
    rows = list(range(len(compared)))
    values = [value for item in compared for value in (*item.engine[metric], item.simulator[metric])]
    runs = [item.engine[metric] for item in compared]
    axes.hlines(rows, list(map(min, runs)), list(map(max, runs)), color=ENGINE.color, linewidth=5, alpha=0.35)
    axes.plot([item.middle(metric) for item in compared], rows, ENGINE.marker, color=ENGINE.color)
    axes.plot(
        [item.simulator[metric] for item in compared], rows, SIMULATOR.marker, color=SIMULATOR.color, fillstyle="none"
    )
    axes.set_yticks(rows, [f"{item.policy} {item.load:.0%}" for item in compared])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    scale(axes, "x", values, log=explodes(values))
