"""Figures of the runs themselves: distributions of latency, tokens per step, and the course over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.metrics import Histogram, histogram_edges
from experiments.report.axes import explodes, scale, target_line
from experiments.report.charts import Chart, Panel
from experiments.report.overlaps import reveal
from experiments.report.samples import Sample, Samples, quantiles
from experiments.report.study import Series, Study, rate_text
from experiments.report.style import MUTED, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Attribute of Sample, name, unit, and how many of that unit are a second.
LATENCIES = (("ttft_s", "TTFT", "s", 1.0), ("tpot_s", "TPOT", "ms", 1e3), ("itl_s", "ITL", "ms", 1e3))
POINTS_OF_A_CDF = 400

Drawn = Mapping[str, tuple[Series, Sample]]


def cdf_chart(drawn: Drawn, study: Study, where: str) -> Chart:
    """How latencies are distributed."""
    panels = [
        Panel(
            f"{name}, CDF",
            partial(_draw_cdf, drawn, attribute, f"{name} ({unit})", factor, study.slo_target(attribute)),
        )
        for attribute, name, unit, factor in LATENCIES
    ]
    return Chart(
        "latency_cdf",
        f"Distribution of latency{where}",
        "At height 90 %, a line shows the latency that nine requests in ten did not exceed; further left is better. "
        "ITL is every single gap between two tokens, so stalls that TPOT averages away show in its tail. "
        f"{_pooled(study)}",
        panels,
        _legend(drawn),
    )


def cdf_by_rate_chart(samples: Samples, study: Study, index: int) -> Chart:
    """The distribution of one latency at every rate, as small multiples."""
    attribute, name, unit, factor = LATENCIES[index]
    panels = []
    for rate in study.rates:
        draw = partial(
            _draw_cdf, at_rate(samples, study, rate), attribute, f"{name} ({unit})", factor, study.slo_target(attribute)
        )
        panels.append(Panel(f"{name} at {rate_text(rate)}", draw))
    legend = {series.label: series.look for series in study.series}
    caption = "The same as above, at each rate that was run."
    return Chart(f"{attribute[:4]}_cdf_by_rate", f"{name} at every rate", caption, panels, legend, folded=True)


def histogram_chart(drawn: Drawn, study: Study, where: str) -> Chart:
    """How many tokens steps computed, of prompts and of decodes."""
    panels = []
    for label, (series, sample) in drawn.items():
        for kind, tokens in (("prefill", sample.prefill_tokens), ("decode", sample.decode_tokens)):
            largest = max(int(getattr(other, f"{kind}_tokens")[0][-2]) for _, other in drawn.values())
            panels.append(
                Panel(_title(label, f"{kind} tokens"), partial(_draw_histogram, series, tokens, kind, largest))
            )
    return Chart(
        "step_tokens",
        f"Tokens per step{where}",
        "Each bar is the share of all steps that computed so many tokens, two bins a doubling. Prefill tokens are "
        "those of prompts: many make a step long and stall every decode in it. A decode is one token of one request, "
        "so decode tokens are also how many requests decode together. "
        f"{_pooled(study)}",
        panels,
        {},
        columns=2,
    )


def timeline_chart(drawn: Drawn, study: Study, where: str) -> Chart:
    """Queue, batch and KV cache over time: a row a series, all on the same scales."""
    panels = []
    ends = [float(sample.timeline.time_s[-1]) for _, sample in drawn.values()]
    end = min(max(ends), 2 * min(ends))  # or a single overloaded series would press all others against the left edge
    cut = " Time is cut at twice that of the shortest run." if end < max(ends) else ""
    for label, (series, sample) in drawn.items():
        for attribute, title, axis_label, factor in (
            ("waiting", "queue length", "requests waiting", 1.0),
            ("running", "batch size", "requests running", 1.0),
            ("kv_usage", "KV cache", "KV blocks in use (%)", 100.0),
        ):
            highest = factor * max(float(getattr(other.timeline, attribute).max()) for _, other in drawn.values())
            draw = partial(_draw_timeline, series, sample, attribute, factor, axis_label, (end, highest))
            panels.append(Panel(_title(label, title), draw))
    return Chart(
        "timeline",
        f"Over time{where}",
        f"Means over short intervals{' of the first seed' if study.num_seeds > 1 else ''}. A queue that only grows "
        "until arrivals end means overload; a KV cache near 100 % means that memory, not compute, limits the batch."
        f"{cut}",
        panels,
        {},
    )


def at_rate(samples: Samples, study: Study, rate: float | None) -> Drawn:
    """The series that were run at this rate, with their samples."""
    return {s.label: (s, samples[s.label, rate]) for s in study.series if (s.label, rate) in samples}


def _legend(drawn: Drawn) -> dict[str, Look]:
    return {label: series.look for label, (series, _) in drawn.items()} if len(drawn) > 1 else {}


def _pooled(study: Study) -> str:
    return "Seeds are pooled." if study.num_seeds > 1 else ""


def _title(label: str, what: str) -> str:
    return f"{label}: {what}" if label else what[0].upper() + what[1:]


def _draw_cdf(drawn: Drawn, attribute: str, label: str, factor: float, target: float | None, axes: Axes) -> None:
    everything: list[float] = []
    lines, middles = [], []
    for series, sample in drawn.values():
        values = quantiles(getattr(sample, attribute), POINTS_OF_A_CDF) * factor
        if not len(values):
            continue
        shares = 100 * np.arange(1, len(values) + 1) / len(values)
        look, half = series.look, len(values) // 2
        (line,) = axes.plot(values, shares, color=look.color, linestyle=look.dash, drawstyle="steps-post")
        (middle,) = axes.plot(values[half], shares[half], color=look.color, marker=look.marker)
        lines.append((look, line))
        middles.append((look, middle))
        # The first and last hundredth do not decide the scale.
        everything += [float(values[len(values) // 100]), float(values[-1 - len(values) // 100])]
    _empty_or(axes, everything)
    scale(axes, "x", everything, log=explodes(everything))
    axes.set_ylim(0, 101)
    reveal(axes, lines)
    reveal(axes, middles)
    axes.set_xlabel(label)
    axes.set_ylabel("of tokens (%)" if attribute == "itl_s" else "of requests (%)")
    target_line(axes, "x", target and target * factor, "SLO")


def _draw_histogram(series: Series, histogram: Histogram, kind: str, largest: int, axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    edges, counts = histogram
    shares = 100 * counts / max(1, counts.sum())
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=8 if largest > 2048 else 4 if largest > 64 else 2, numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(0.9, max(8, histogram_edges(largest)[-1] * 1.05))
    axes.grid(visible=False, axis="x")
    axes.bar(edges[1:-1], shares[1:], np.diff(edges)[1:] * 0.94, align="edge", color=series.look.color)
    axes.set_ylim(0, 1.25 * shares[1:].max(initial=0) or 1.0)
    none = f"{shares[0]:.1f}" if shares[0] == 0 or shares[0] >= 0.1 else "under 0.1"
    axes.text(0.98, 0.97, f"none in {none} % of steps", transform=axes.transAxes, ha="right", va="top", fontsize=9)
    axes.set_xlabel(f"{kind} tokens in a step")
    axes.set_ylabel("of steps (%)")


def _draw_timeline(
    series: Series, sample: Sample, attribute: str, factor: float, label: str, corner: tuple[float, float], axes: Axes
) -> None:
    values = getattr(sample.timeline, attribute) * factor
    axes.fill_between(sample.timeline.time_s, values, color=series.look.color, alpha=0.25, linewidth=0)
    axes.plot(sample.timeline.time_s, values, color=series.look.color, linewidth=1.2)
    axes.set_xlim(0, corner[0])
    axes.set_ylim(0, max(1.0, 1.08 * corner[1]))
    axes.set_xlabel("time (s)")
    axes.set_ylabel(label)


def _empty_or(axes: Axes, values: Sequence[float]) -> None:
    if not values:
        axes.text(0.5, 0.5, "no request has it", transform=axes.transAxes, ha="center", color=MUTED[0])
