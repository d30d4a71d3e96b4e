"""Latency, goodput and throughput against the offered rate: a line a series, a band for the uncertainty over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.axes import explodes, limits, rate_axis, scale, target_line
from experiments.report.charts import Chart, Panel
from experiments.report.study import GOOD_SHARE, Study, rate_text
from experiments.report.style import MUTED, Look
from experiments.report.verdict import slo_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Curve:
    """What to draw of the summaries: where it is, the factor to the unit in its label, and what its axis must show."""

    study: Study
    path: Sequence[str]
    label: str
    factor: float = 1.0
    #: The axis shows these values; by default the means of this figure.
    shown: Sequence[float] = ()
    log: bool = False
    target: float | None = None
    target_text: str = "SLO"

    def draw(self, axes: Axes) -> None:
        """A line a series; or, with a single rate, a row a series."""
        rates = [rate for rate in self.study.rates if rate is not None]
        if len(rates) > 1:
            self._draw_lines(rates, axes)
        else:
            self._draw_rows(axes)

    def means(self) -> list[float]:
        """The mean over seeds of every series at every rate, in the label's unit."""
        pairs = ((series, rate) for series in self.study.series for rate in self.study.rates)
        found = (self.study.estimate(series, rate, *self.path) for series, rate in pairs)
        return [estimate.mean * self.factor for estimate in found if estimate is not None]

    def _draw_lines(self, rates: Sequence[float], axes: Axes) -> None:
        shown = self.shown or self.means()
        floor = limits(shown, log=self.log)[0] / 100  # a logarithmic scale has no place for zero
        for series in self.study.series:
            found = [(rate, e) for rate in rates if (e := self.study.estimate(series, rate, *self.path)) is not None]
            xs = [rate for rate, _ in found]
            means = [estimate.mean * self.factor for _, estimate in found]
            halves = [(estimate.half_width or 0.0) * self.factor for _, estimate in found]
            look = series.look
            axes.plot(xs, means, color=look.color, marker=look.marker, linestyle=look.dash)
            if any(halves):
                lower = [max(mean - half, floor) for mean, half in zip(means, halves, strict=True)]
                upper = [mean + half for mean, half in zip(means, halves, strict=True)]
                axes.fill_between(xs, lower, upper, color=look.color, alpha=0.13, linewidth=0)
        scale(axes, "y", shown, log=self.log)
        rate_axis(axes, rates)
        axes.set_ylabel(self.label)
        target_line(axes, "y", self.target, self.target_text)

    def _draw_rows(self, axes: Axes) -> None:
        rows = list(reversed(self.study.series))
        for row, series in enumerate(rows):
            estimate = self.study.estimate(series, self.study.rates[-1], *self.path)
            if estimate is None:
                place = axes.get_yaxis_transform()
                axes.text(0.02, row, "none", transform=place, va="center", color=MUTED[0], fontsize=9)
                continue
            half = None if estimate.half_width is None else estimate.half_width * self.factor
            look = series.look
            mean = estimate.mean * self.factor
            axes.errorbar(mean, row, xerr=half, color=look.color, marker=look.marker, markersize=8, capsize=4)
        scale(axes, "x", self.shown or self.means(), log=self.log)
        axes.set_yticks(range(len(rows)), [series.label.replace(", ", ",\n") for series in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlabel(self.label)
        target_line(axes, "x", self.target, self.target_text)


def latency_chart(study: Study) -> Chart:
    """TTFT and TPOT against rate: mean, P50 and P99, the three on one scale."""
    panels = []
    for metric, name, unit, factor in (("ttft_s", "TTFT", "s", 1.0), ("tpot_s", "TPOT", "ms", 1e3)):
        statistics = {"mean": "mean", "p50": "P50", "p99": "P99"}
        shown = [value for key in statistics for value in Curve(study, (metric, key), "", factor).means()]
        target = study.slo_target(metric)
        for key, statistic in statistics.items():
            label = f"{name} {statistic} ({unit})"
            curve = Curve(study, (metric, key), label, factor, shown, explodes(shown), target and target * factor)
            panels.append(Panel(f"{name}, {statistic}", curve.draw))
    return Chart(
        "latency",
        f"Latency {_against(study)}",
        "TTFT is the time to the first token, TPOT the time per output token after it; lower is better. Where a line "
        "turns sharply upwards, the scheduler no longer keeps up and its queue grows for as long as requests come. "
        + _interval_text(study),
        panels,
        _legend(study),
    )


def goodput_chart(study: Study) -> Chart:
    """The share of requests that met their SLO, and how many a second did."""
    target = 100 * GOOD_SHARE
    # 95 makes the axis end just above 100 %.
    share = Curve(study, ("goodput", "share"), "requests within SLO (%)", 100.0, [95.0], False, target, f"{target:g} %")
    amount = Curve(study, ("goodput", "requests_per_s"), "goodput (requests/s)")
    return Chart(
        "goodput",
        f"Goodput {_against(study)}",
        f"A request is good when it met {slo_text(study) or 'every target it has'}; higher is better. The dashed "
        f"line at {target:g} % marks what this report calls sustained. {_interval_text(study)}",
        [Panel("Share of requests that met their SLO", share.draw), Panel("Good requests per second", amount.draw)],
        _legend(study),
        columns=2,
    )


def throughput_chart(study: Study) -> Chart:
    """What was completed per second, in requests and in tokens."""
    requests = Curve(study, ("throughput", "requests_per_s"), "completed (requests/s)")
    tokens = Curve(study, ("throughput", "output_tokens_per_s"), "output (tokens/s)")
    return Chart(
        "throughput",
        f"Throughput {_against(study)}",
        "Over the whole run, from the first arrival until the last request has drained. A line that flattens is at its "
        f"capacity. {_interval_text(study)}",
        [Panel("Completed requests", requests.draw), Panel("Output tokens", tokens.draw)],
        _legend(study),
        columns=2,
    )


def _legend(study: Study) -> dict[str, Look]:
    return {series.label: series.look for series in study.series}


def _against(study: Study) -> str:
    return "against rate" if len(study.rates) > 1 else f"at {rate_text(study.rates[0])}"


def _interval_text(study: Study) -> str:
    if study.num_seeds == 1:
        return "One seed: no confidence intervals."
    shown = "Bands" if len(study.rates) > 1 else "Whiskers"
    return f"{shown}: 95 % confidence intervals over {study.num_seeds} seeds (Student's t), wide where seeds are few."
