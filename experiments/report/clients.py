"""The chart of a run's clients: what each was served over time, and how far two of them drifted apart."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.fairness import Fairness
from experiments.report.axes import scale
from experiments.report.charts import Chart, Panel
from experiments.report.style import MUTED, SERIES_COLORS, Look
from experiments.report.tables import number
from experiments.storage import OpenRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Lines that can be told apart.
MAX_LINES = len(SERIES_COLORS)


def clients_chart(run: OpenRun) -> Chart:
    """Service, backlog and gap over time, with the figures of the run's summary in the caption."""
    fairness, summary = Fairness.of(run.requests), run.summary["fairness"]
    looks = {client or "(no name)": Look(row) for row, client in enumerate(fairness.clients[:MAX_LINES])}
    left_out = summary["num_clients"] - len(looks)
    others = f" The {left_out:,} clients with fewer requests are not drawn." if left_out else ""
    jain = summary["jain_index"]
    return Chart(
        name="clients",
        title="Clients side by side",
        caption="Service is what a client was served: prompt tokens that were computed, and output tokens twice. A "
        "client is backlogged while a request of its waits for its first step. The gap is the largest difference in "
        "service between two clients over any time, up to now, in which both were backlogged throughout (VTC, OSDI "
        f"2024): at most {number(summary['largest_gap'])} weighted tokens. Jain's index of service per second of "
        f"backlog: {'none, as no two competed' if jain is None else f'{jain:.3f}'}.{others}",
        panels=[
            Panel("Service, cumulative", partial(_draw_service, fairness, looks)),
            Panel("Backlogged", partial(_draw_backlog, fairness, looks)),
            Panel("Largest gap in service", partial(_draw_gap, fairness)),
        ],
        legend=looks,
    )


def _draw_service(fairness: Fairness, looks: dict[str, Look], axes: Axes) -> None:
    start_s = fairness.time_s[0]
    for row, look in enumerate(looks.values()):
        axes.plot(fairness.time_s - start_s, fairness.service[row] / 1e3, color=look.color)
    scale(axes, "y", [float(fairness.service.max()) / 1e3], log=False)
    axes.set_xlim(0, float(fairness.time_s[-1] - start_s))
    axes.set_xlabel("time from the first arrival (s)")
    axes.set_ylabel("weighted tokens (thousands)")


def _draw_backlog(fairness: Fairness, looks: dict[str, Look], axes: Axes) -> None:
    time_s = fairness.time_s - fairness.time_s[0]
    for row, look in enumerate(looks.values()):
        waits = np.where(fairness.backlog[row] >= 0, float(row), np.nan)
        axes.plot(time_s, waits, color=look.color, linewidth=6, solid_capstyle="butt")
    axes.set_yticks(range(len(looks)), list(looks))
    axes.set_ylim(len(looks) - 0.5, -0.5)
    axes.set_xlim(0, float(time_s[-1]))
    axes.set_xlabel("time from the first arrival (s)")


def _draw_gap(fairness: Fairness, axes: Axes) -> None:
    time_s = fairness.time_s - fairness.time_s[0]
    axes.fill_between(time_s, fairness.gap / 1e3, color=MUTED[0], alpha=0.25, linewidth=0)
    axes.plot(time_s, fairness.gap / 1e3, color=MUTED[0], linewidth=1.2)
    scale(axes, "y", [float(fairness.gap.max()) / 1e3], log=False)
    axes.set_xlim(0, float(time_s[-1]))
    axes.set_xlabel("time from the first arrival (s)")
    axes.set_ylabel("weighted tokens (thousands)")
