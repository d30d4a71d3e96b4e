"""The figure of a workload: arrivals over time, gaps, lengths, and what caches find."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.describe.traffic import Floats, Traffic, counts
from experiments.report.axes import explodes, scale
from experiments.report.charts import Chart, Panel
from experiments.report.style import MUTED, Look
from experiments.workloads import WorkloadRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from experiments.describe.sharing import Sharing

POINTS_OF_GAPS = 600

#: Windows that the figure of arrivals over time has about.
WINDOWS = 120

PROMPT, OUTPUT = Look(0), Look(1, 1)


def chart_of(requests: Sequence[WorkloadRequest], traffic: Traffic, sharing: Sharing | None) -> Chart:
    """Everything there is to see of a workload; panels without anything in them are left out."""
    panels = [Panel("Lengths, CDF", partial(_draw_lengths, requests))]
    if traffic.rate is not None:
        panels = [
            Panel("Arrivals over time", partial(_draw_rate, traffic)),
            Panel("Gaps between arrivals", partial(_draw_gaps, traffic)),
            *panels,
        ]
    if sharing is not None:
        panels.append(Panel("Blocks of prompts found", partial(_draw_sharing, sharing)))
    return Chart(
        "workload",
        "What the workload asks for",
        "Gaps are compared with those of Poisson arrivals at the same rate: a line that leaves theirs to the right has "
        "longer silences. A cache of so many blocks, of which the least recently used is forgotten, finds that share "
        "of the blocks of all prompts; crosses are what the engine's own KV cache finds, one request after another.",
        panels,
        {},
        columns=2,
    )


def nice(seconds: float) -> float:
    """The first of ..., 1, 2, 5, 10, 20, 50, ... that is not below `seconds`."""
    power = 10.0 ** np.floor(np.log10(seconds))
    return float(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= seconds * (1 - 1e-9)))


def _draw_rate(traffic: Traffic, axes: Axes) -> None:
    seconds = nice(traffic.span_s / WINDOWS)
    rates = counts(traffic.times_s, seconds) / seconds
    edges = traffic.times_s[0] + seconds * np.arange(len(rates) + 1)
    axes.stairs(rates, edges, color=PROMPT.color, fill=True, alpha=0.25)
    axes.stairs(rates, edges, color=PROMPT.color, linewidth=1.2)
    axes.axhline(traffic.rate or 0.0, color=MUTED[0], linewidth=1, linestyle=(0, (3, 3)))
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, None)
    axes.set_xlabel("time (s)")
    axes.set_ylabel(f"requests/s, in {seconds:g} s windows")


def _draw_gaps(traffic: Traffic, axes: Axes) -> None:
    every = np.sort(np.diff(traffic.times_s))
    # The longest one by one, the many short ones by steps in proportion: a million gaps are some hundred points.
    ranks = np.unique(np.geomspace(1, len(every), POINTS_OF_GAPS).astype(np.int64))[::-1]
    gaps, longer = every[len(every) - ranks], ranks / (len(every) + 1)
    axes.plot(gaps, longer, color=PROMPT.color, drawstyle="steps-post", label="this workload")
    exponential = -np.log(longer) * every.mean()
    axes.plot(exponential, longer, color=MUTED[0], linewidth=1, linestyle=(0, (3, 3)), label="Poisson")
    axes.set_yscale("log")
    positive = [float(gap) for gap in gaps[gaps > 0]]
    ends = [positive[len(positive) // 100], max(positive[-1], float(exponential[-1]))]
    scale(axes, "x", ends, log=explodes(ends))
    axes.set_xlabel("gap (s)")
    axes.set_ylabel("share of gaps that are longer")
    axes.legend(loc="upper right")


def _draw_lengths(requests: Sequence[WorkloadRequest], axes: Axes) -> None:
    everything: list[float] = []
    columns = (
        ("prompt", PROMPT, np.array([request.num_prompt_tokens for request in requests])),
        ("output", OUTPUT, np.array([request.num_answer_tokens for request in requests])),
    )
    for label, look, lengths in columns:
        percents = np.linspace(0, 100, 401)
        values: Floats = np.percentile(lengths, percents)
        axes.plot(values, percents, color=look.color, linestyle=look.dash, drawstyle="steps-post", label=label)
        everything += [float(values[0]), float(values[-1])]
    scale(axes, "x", everything, log=explodes(everything))
    axes.set_ylim(0, 101)
    axes.set_xlabel("tokens")
    axes.set_ylabel("of requests (%)")
    axes.legend(loc="upper left")


def _draw_sharing(sharing: Sharing, axes: Axes) -> None:
    sizes = [size for size in sharing.curve if size.num_blocks is not None]
    numbers = [float(size.num_blocks or 0) for size in sizes]
    axes.plot(numbers, [100 * size.lru for size in sizes], color=PROMPT.color, marker=PROMPT.marker, label="LRU count")
    asked = [size for size in sharing.sizes if size.num_blocks is not None and size.num_blocks <= max(numbers)]
    axes.plot(
        [float(size.num_blocks or 0) for size in asked],
        [100 * (size.served or 0.0) for size in asked],
        color=OUTPUT.color,
        marker="x",
        linestyle="none",
        markersize=8,
        label="the engine's KV cache",
    )
    axes.axhline(100 * sharing.sizes[-1].lru, color=MUTED[0], linewidth=1, linestyle=(0, (3, 3)))
    scale(axes, "x", numbers, log=True)
    axes.set_ylim(0, max(1.0, 110 * sharing.sizes[-1].lru))
    axes.set_xlabel(f"cache (blocks of {sharing.block_size} tokens)")
    axes.set_ylabel("of blocks found (%)")
    axes.legend(loc="lower right")
