"""The combined report of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from experiments.report import curves, details
from experiments.report.caveats import caveats
from experiments.report.charts import Chart, chart_files, swatch
from experiments.report.description import CONTENTS, Contents, RunDescription
from experiments.report.page import chart_section, description_section, page, warnings_section
from experiments.report.priorities import priority_chart
from experiments.report.samples import Samples, load_samples
from experiments.report.study import Point, Study, rate_text
from experiments.report.tables import points_table
from experiments.report.verdict import headline, verdict
from experiments.storage import write_files


def write_report(
    folder: Path, points: Sequence[Point], title: str, description: RunDescription, *, rate: float | None = None
) -> Path:
    """Write `report.html`, `report.json` and the figures of a sweep's points into `folder`; returns the page's path.

    `rate` is the one at which runs are looked into closely; by default the knee (`Study.knee`).

    Raises:
        InputError: there is no point, or the folder cannot be written.
    """
    study = Study(points)
    focus = study.knee if rate is None else rate
    samples, unreadable = load_samples(study)
    charts = _charts(study, samples, focus)

    seeds = sorted({str(point.axes["seed"]) for point in study.points if "seed" in point.axes})
    more = {
        "Points": f"{len(study.points)} runs: {len(study.series)} series, {len(study.rates)} rates",
        "Rates": ", ".join(rate_text(rate) for rate in study.rates),
        "Seeds": ", ".join(seeds) or "none given",
    }
    table = f"<section><h2>All points</h2>{points_table(study, folder)}</section>"
    sections = [_verdicts(title, study), warnings_section([*caveats(study, description), *unreadable])]
    sections += [chart_section(chart) for chart in charts]
    sections += [table, description_section(description, more)]

    output = {CONTENTS: Contents(title, description, study.points).to_json(folder)}
    for chart in charts:
        output |= chart_files(chart)
    output["report.html"] = page(title, sections)
    write_files(folder, output)
    return folder / "report.html"


def _charts(study: Study, samples: Samples, focus: float | None) -> list[Chart]:
    where = f" at {rate_text(focus)}"
    drawn = details.at_rate(samples, study, focus)
    charts = [curves.latency_chart(study)]
    if study.has_slo:
        charts.append(curves.goodput_chart(study))
    if study.priorities:
        charts.append(priority_chart(study))
    charts.append(curves.throughput_chart(study))
    if drawn:
        charts.append(details.cdf_chart(drawn, study, where))
        if len(study.rates) > 1:
            charts += [details.cdf_by_rate_chart(samples, study, index) for index in (0, 1)]
        charts += [details.histogram_chart(drawn, study, where), details.timeline_chart(drawn, study, where)]
    return charts


def _verdicts(title: str, study: Study) -> str:
    lines = "".join(
        f"<li>{swatch(series.look)} <span><strong>{escape(series.label)}</strong> "
        f"{escape(verdict(study, series))}</span></li>"
        for series in study.series
    )
    first = f'<h1>{escape(title)}</h1><p class="headline">{escape(headline(study))}</p>'
    return f'<header>{first}<ul class="verdicts">{lines}</ul></header>'
