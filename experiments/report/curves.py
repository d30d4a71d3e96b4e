"""Latency, goodput and throughput against the offered rate: a line a series, a band for the uncertainty over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.report.axes import explodes, rate_axis, scale, target_line
from experiments.report.charts import Chart, Panel
from experiments.report.overlaps import reveal
from experiments.report.study import GOOD_SHARE, Estimate, Study, rate_text
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
    #: The axis shows these values and intervals up to `most`; by default the means, and 1.4 times the largest of them.
    shown: Sequence[float] = ()
    most: float | None = None
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

    def _shown(self) -> list[float]:
        """What the axis must show: every mean, and of the intervals as much as leaves the means readable."""
        means = list(self.shown or self.means())
        pairs = ((series, rate) for series in self.study.series for rate in self.study.rates)
        found = (self.study.estimate(series, rate, *self.path) for series, rate in pairs)
        ends = [(e.mean + (e.half_width or 0.0)) * self.factor for e in found if e is not None]
        most = self.most or 1.4 * max(means, default=0.0)
        return means + [min(end, most) for end in ends]

    def _draw_lines(self, rates: Sequence[float], axes: Axes) -> None:
        lines = []
        alpha = min(0.13, 0.6 / len(self.study.series))
        for series in self.study.series:
            found = [(rate, e) for rate in rates if (e := self.study.estimate(series, rate, *self.path)) is not None]
            xs = [rate for rate, _ in found]
            means = [estimate.mean * self.factor for _, estimate in found]
            look = series.look
            (line,) = axes.plot(xs, means, color=look.color, marker=look.marker, linestyle=look.dash)
            lines.append((look, line))
            if any(estimate.half_width for _, estimate in found):
                lower, upper = zip(*(self._interval(estimate) for _, estimate in found), strict=True)
                axes.fill_between(xs, lower, upper, color=look.color, alpha=alpha, linewidth=0)
        scale(axes, "y", self._shown(), log=self.log)
        rate_axis(axes, rates)
        reveal(axes, lines)
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
            look = series.look
            mean = estimate.mean * self.factor
            lower, upper = self._interval(estimate)
            whiskers = [[mean - lower], [upper - mean]] if estimate.half_width is not None else None
            axes.errorbar(mean, row, xerr=whiskers, color=look.color, marker=look.marker, markersize=8, capsize=4)
        scale(axes, "x", self._shown(), log=self.log)
        axes.set_yticks(range(len(rows)), [series.label.replace(" ", "\n") for series in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.set_xlabel(self.label)
        target_line(axes, "x", self.target, self.target_text)

    def _interval(self, estimate: Estimate) -> tuple[float, float]:
        """The ends of what is drawn of a confidence interval.

        On a logarithmic scale, which has no place for zero and would blow up what comes near it, nothing is drawn below
        the lowest seed.
        """
        half = estimate.half_width or 0.0
        lower = max(estimate.mean - half, estimate.smallest) if self.log else estimate.mean - half
        return lower * self.factor, (estimate.mean + half) * self.factor


def latency_chart(study: Study) -> Chart:
    """TTFT and TPOT against rate: mean, P50 and P99, the three on one scale."""
    panels = []
    for metric, name, unit, factor in (("ttft_s", "TTFT", "s", 1.0), ("tpot_s", "TPOT", "ms", 1e3)):
        statistics = {"mean": "mean", "p50": "P50", "p99": "P99"}
        shown = [value for key in statistics for value in Curve(study, (metric, key), "", factor).means()]
        target = study.slo_target(metric)
        for key, statistic in statistics.items():
            label = f"{name} {statistic} ({unit})"
            goal = target and target * factor
            curve = Curve(study, (metric, key), label, factor, shown, log=explodes(shown), target=goal)
            panels.append(Panel(f"{name}, {statistic}", curve.draw))
    turning = (
        "Where a line turns sharply upwards, the scheduler no longer keeps up: its queue grows while requests come. "
    )
    apart = "Lines that lie on each other are dashed in turn, with hollow markers. "
    intervals = (
        " They are Student's t, wide where seeds are few; on a logarithmic scale, cut off below the lowest seed."
    )
    caption = "TTFT is the time to the first token, TPOT the time per output token after it; lower is better. "
    if len(study.rates) > 1:
        caption += turning + (apart if len(study.series) > 1 else "")
    return Chart(
        "latency",
        f"Latency {against(study)}",
        f"{caption}{interval_text(study)}{intervals if study.num_seeds > 1 else ''}",
        panels,
        series_legend(study),
    )


def goodput_chart(study: Study) -> Chart:
    """The share of requests that met their SLO, and how many a second did."""
    target = 100 * GOOD_SHARE
    # 95 makes the axis end just above 100 %.
    share = Curve(
        study,
        ("goodput", "share"),
        "requests within SLO (%)",
        100.0,
        [0.0, 95.0],
        95.0,
        target=target,
        target_text=f"{target:g} %",
    )
    amount = Curve(study, ("goodput", "requests_per_s"), "goodput (requests/s)")
    return Chart(
        "goodput",
        f"Goodput {against(study)}",
        f"A request is good when it met {slo_text(study) or 'every target it has'}; higher is better. The dashed "
        f"line at {target:g} % marks what this report calls sustained. {interval_text(study)}",
        [Panel("Share of requests that met their SLO", share.draw), Panel("Good requests per second", amount.draw)],
        series_legend(study),
        columns=2,
    )


def throughput_chart(study: Study) -> Chart:
    """What was completed per second, in requests and in tokens."""
    requests = Curve(study, ("throughput", "requests_per_s"), "completed (requests/s)")
    tokens = Curve(study, ("throughput", "output_tokens_per_s"), "output (tokens/s)")
    return Chart(
        "throughput",
        f"Throughput {against(study)}",
        "Over the whole run, from the first arrival until the last request has drained. "
        f"{'A line that flattens is at its capacity. ' if len(study.rates) > 1 else ''}{interval_text(study)}",
        [Panel("Completed requests", requests.draw), Panel("Output tokens", tokens.draw)],
        series_legend(study),
        columns=2,
    )


def series_legend(study: Study) -> dict[str, Look]:
    """All series of the study."""
    return {series.label: series.look for series in study.series}


def against(study: Study) -> str:
    """What follows "Latency" in a title."""
    return "against rate" if len(study.rates) > 1 else f"at {rate_text(study.rates[0])}"


def interval_text(study: Study) -> str:
    """What a caption says of the uncertainty that is drawn."""
    if study.num_seeds == 1:
        return "One seed: no confidence intervals."
    shown = "Bands" if len(study.rates) > 1 else "Whiskers"
    return f"{shown}: 95 % confidence intervals over {study.num_seeds} seeds."
