"""The page of `experiment=fidelity`: distributions, requests and load, measured beside simulated."""

from __future__ import annotations

from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.columns import Floats
from experiments.report.charts import Chart, Panel, chart_files
from experiments.report.page import chart_section, page, warnings_section
from experiments.report.style import MUTED, Look
from experiments.storage import write_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from experiments.fidelity import Comparison

MEASURED, SIMULATED = Look(0), Look(1, 1)
_LEGEND = {"measured": MEASURED, "simulated": SIMULATED}
#: Unit of a latency, and how many of that unit are a second.
_UNITS = {"TTFT": ("s", 1.0), "TPOT": ("ms", 1e3), "E2E": ("s", 1.0)}


def write_page(folder: Path, comparison: Comparison) -> Path:
    """Draw the charts into `figures/`, as PNG and PDF, and write `report.html`; returns the page's path.

    Raises:
        InputError: the folder cannot be written.
    """
    from experiments.fidelity import table

    drawn = _charts(comparison)
    files: dict[str, bytes] = {}
    for chart in drawn:
        files |= chart_files(chart)
    title = f"Fidelity: {comparison.name}"
    sections = [
        f"<header><h1>{escape(title)}</h1></header>",
        warnings_section(comparison.warnings),
        f"<section><pre>{escape(table(comparison))}</pre></section>",
        *map(chart_section, drawn),
    ]
    files["report.html"] = page(title, sections)
    write_files(folder, files)
    return folder / "report.html"


def _charts(comparison: Comparison) -> list[Chart]:
    theirs, ours = comparison.measured.by_name, comparison.simulated.by_name
    panels = [Panel(f"{name}, CDF", partial(_draw_cdf, name, theirs[name], ours[name])) for name in theirs]
    panels += [
        Panel(f"{name}, request by request", partial(_draw_requests, name, theirs[name], ours[name])) for name in theirs
    ]
    charts = [
        Chart(
            "fidelity",
            "Latencies",
            "Above, how many of the requests had at most that latency. Below, a point a request: on the line the two "
            "agree. Latencies count from when the engine took a request in.",
            panels,
            _LEGEND,
        )
    ]
    if (load := comparison.run.load()) is not None:
        charts.append(
            Chart(
                "load",
                "Requests in the engine",
                "Once a second, as vLLM's statistics told them, and as the simulated steps had them.",
                [
                    Panel(f"Requests {name}", partial(_draw_load, comparison, load["t"], load[name], name))
                    for name in ("running", "waiting")
                ],
                _LEGEND,
                columns=2,
            )
        )
    return charts


def _draw_cdf(name: str, measured: Floats, simulated: Floats, axes: Axes) -> None:
    unit, factor = _UNITS[name]
    for values, look in ((measured, MEASURED), (simulated, SIMULATED)):
        ascending = np.sort(values[~np.isnan(values)]) * factor
        shares = np.arange(1, len(ascending) + 1) / len(ascending) * 100
        axes.plot(ascending, shares, color=look.color, linestyle=look.dash)
    axes.set(xlabel=f"{name} ({unit})", ylabel="% of requests", ylim=(0, 101))
    axes.set_xlim(left=0)


def _draw_requests(name: str, measured: Floats, simulated: Floats, axes: Axes) -> None:
    unit, factor = _UNITS[name]
    x, y = measured * factor, simulated * factor
    end = 1.05 * float(np.nanmax([x, y]))
    axes.plot([0, end], [0, end], color=MUTED[0], linewidth=1, linestyle=(0, (3, 3)))
    axes.scatter(x, y, s=9, color=SIMULATED.color, alpha=0.6, linewidths=0)
    axes.set(xlabel=f"measured {name} ({unit})", ylabel=f"simulated ({unit})", xlim=(0, end), ylim=(0, end))


def _draw_load(comparison: Comparison, seconds: Floats, measured: Floats, name: str, axes: Axes) -> None:
    steps = comparison.steps
    axes.plot(seconds, measured, color=MEASURED.color, linestyle=MEASURED.dash)
    axes.plot(
        [step.start_s for step in steps],
        [getattr(step, f"num_{name}") for step in steps],
        color=SIMULATED.color,
        linestyle=SIMULATED.dash,
    )
    axes.set(xlabel="seconds", ylabel="requests", ylim=(0, None), xlim=(0, None))
