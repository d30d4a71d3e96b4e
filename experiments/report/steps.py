"""The chart of some steps of a run, a row a request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.gantt import Row
from experiments.report.charts import Chart, Panel
from experiments.report.style import GRID, INK, MUTED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEP_WIDTH_IN, ROW_HEIGHT_IN = 0.19, 0.165
#: What labels and the legend need besides.
MARGIN_IN = (1.4, 0.9)
PREFILL, DECODE, HELD = Look(1), Look(0), Look(4)


def gantt_chart(rows: Sequence[Row], first: int, last: int, *, num_left_out: int) -> Chart:
    """A column a step, from `first` to `last`; `num_left_out` requests more have no row."""
    width = MARGIN_IN[0] + STEP_WIDTH_IN * max(20, last - first + 1)
    height = MARGIN_IN[1] + ROW_HEIGHT_IN * max(6, len(rows))
    more = f", {num_left_out} further requests not drawn" if num_left_out else ""
    return Chart(
        name=f"gantt_{first}_{last}",
        title=f"Steps {first} to {last}{more}",
        caption="A column is a step, however long it took; numbers are the tokens of a prompt that it computed.",
        panels=[Panel(f"Steps {first} to {last}{more}", partial(_draw, rows, first, last))],
        legend={},
        columns=1,
        panel_size_in=(width, height),
    )


def _draw(rows: Sequence[Row], first: int, last: int, axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    for y, row in enumerate(rows):
        _bars(axes, row.waited, y, 0.14, MUTED[0], 0.55)
        _bars(axes, row.held, y, 0.3, HELD.color, 0.8)
        _bars(axes, row.decodes, y, 0.74, DECODE.color, 0.9, gap=0.1)
        _bars(axes, list(row.prefills), y, 0.74, PREFILL.color, 0.6, gap=0.1)
        for step, tokens in row.prefills.items():
            size = 6.0 if tokens < 1000 else 5.0 if tokens < 10_000 else 4.0
            axes.text(step, y, str(tokens), ha="center", va="center", fontsize=size, color=INK[0])
        axes.plot(row.preempted, [y] * len(row.preempted), "x", color=INK[0], markersize=5, markeredgewidth=1.4)
    axes.set_xlim(first - 0.5, last + 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [_short(row.request_id) for row in rows], fontsize=6.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20, min_n_ticks=1))
    axes.grid(visible=False)
    axes.hlines([y + 0.5 for y in range(len(rows))], first - 0.5, last + 0.5, color=GRID[0], linewidth=0.4)
    axes.set_xlabel("step")
    handles = [
        Patch(color=PREFILL.color, alpha=0.6, label="prefill, with its tokens"),
        Patch(color=DECODE.color, label="decode"),
        Patch(color=HELD.color, label="has a place, not scheduled"),
        Line2D([], [], color=MUTED[0], label="waits"),
        Line2D([], [], color=INK[0], marker="x", linestyle="none", label="preempted"),
    ]
    columns = 5 if last - first >= 35 else 3
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8)


def _bars(
    axes: Axes, steps: Collection[int], y: int, height: float, color: str, alpha: float, *, gap: float = 0.0
) -> None:
    """A bar of this height in each of these steps."""
    if steps:
        spans = [(step - 0.5 + gap / 2, 1 - gap) for step in steps]
        axes.broken_barh(spans, (y - height / 2, height), color=color, alpha=alpha, linewidth=0)


def _short(request_id: str) -> str:
    return request_id if len(request_id) <= 14 else f"...{request_id[-11:]}"
