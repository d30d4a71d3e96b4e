"""The chart of one workload in both worlds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.comparison import JUDGED, METRICS, Compared
from experiments.report.axes import explodes, scale
from experiments.report.charts import PANEL_HEIGHT_IN, PANEL_WIDTH_IN, Chart, Panel
from experiments.report.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENGINE, SIMULATOR, AT_PACE = Look(0), Look(1), Look(2)
#: Height of a row, so that its label does not touch the next; letters of a label that a panel has room for, and the
#: width of each beyond them.
ROW_IN = 0.2
LETTERS, LETTER_IN = 20, 0.075


def compared_chart(compared: Sequence[Compared]) -> Chart:
    """A row for each policy and load: the range of the engine's runs, and the simulator's prediction."""
    runs = max(len(runs) for item in compared for runs in item.engine.values())
    gauged = any(item.at_pace for item in compared)
    caption = f"Bars span the engine's {runs} runs; circles are their median, squares the simulator's prediction"
    return Chart(
        name="compare",
        title="The engine and the simulator",
        caption=caption + (", triangles that at the machine's pace." if gauged else "."),
        panels=[
            Panel(
                f"{metric} ({METRICS[metric][0]})",
                partial(_draw, [item for item in compared if metric in item.engine], metric),
            )
            for metric in JUDGED
            if any(metric in item.engine for item in compared)
        ],
        panel_size_in=(
            PANEL_WIDTH_IN + LETTER_IN * max(0, max(map(len, map(_label, compared))) - LETTERS),
            max(PANEL_HEIGHT_IN, ROW_IN * len(compared)),
        ),
        legend={"engine": ENGINE, "simulator": SIMULATOR} | ({"at the machine's pace": AT_PACE} if gauged else {}),
    )


def _draw(compared: Sequence[Compared], metric: str, axes: Axes) -> None:
    rows = list(range(len(compared)))
    at_pace = {row: item.at_pace[metric] for row, item in enumerate(compared) if metric in item.at_pace}
    values = [value for item in compared for value in (*item.engine[metric], item.simulator[metric])]
    values += at_pace.values()
    runs = [item.engine[metric] for item in compared]
    axes.hlines(rows, list(map(min, runs)), list(map(max, runs)), color=ENGINE.color, linewidth=5, alpha=0.35)
    axes.plot([item.middle(metric) for item in compared], rows, ENGINE.marker, color=ENGINE.color)
    axes.plot(
        [item.simulator[metric] for item in compared], rows, SIMULATOR.marker, color=SIMULATOR.color, fillstyle="none"
    )
    axes.plot(list(at_pace.values()), list(at_pace), AT_PACE.marker, color=AT_PACE.color, fillstyle="none")
    axes.set_yticks(rows, [_label(item) for item in compared])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    scale(axes, "x", values, log=explodes(values))


def _label(item: Compared) -> str:
    return f"{item.policy} {item.load:.0%}"
