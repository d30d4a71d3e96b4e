"""The plots and the small page of a single run."""

from __future__ import annotations

from html import escape
from pathlib import Path

from experiments.report import details
from experiments.report.charts import Chart, chart_files
from experiments.report.clients import clients_chart
from experiments.report.description import RunDescription
from experiments.report.page import chart_section, description_section, page, warnings_section
from experiments.report.samples import Sample
from experiments.report.study import Point, Study
from experiments.report.tables import priorities_table, summary_table
from experiments.report.verdict import in_short, slo_text
from experiments.storage import OpenRun, open_run, write_files


def plot_run(folder: Path) -> None:
    """Draw a stored run's latency distributions, tokens per step and timeline into its `figures/`, as PNG and PDF.

    Raises:
        InputError: the folder holds no complete run, or cannot be written.
    """
    run = open_run(folder)
    output: dict[str, bytes] = {}
    for chart in _charts(run, _study(run)):
        output |= chart_files(chart)
    write_files(folder, output)


def write_run_page(folder: Path) -> Path:
    """Draw a stored run as `plot_run` does, and write `report.html` beside; returns the page's path.

    Raises:
        InputError: as `plot_run`.
    """
    run = open_run(folder)
    study = _study(run)
    charts = _charts(run, study)
    output: dict[str, bytes] = {}
    for chart in charts:
        output |= chart_files(chart)
    facts = {name.capitalize(): value for name, value in run.summary.items() if isinstance(value, str)}
    title = f"Run {folder.resolve().name}"
    (point,) = study.points
    sections = [
        f'<header><h1>{escape(title)}</h1><p class="headline">{escape(_in_short(study))}</p></header>',
        warnings_section(run.summary.get("warnings", ())),
        *map(chart_section, charts),
        f"<section><h2>Figures</h2>{summary_table(point)}</section>",
        _by_priority(point),
        description_section(RunDescription(config_yaml=run.config_yaml), facts),
    ]
    output["report.html"] = page(title, sections)
    write_files(folder, output)
    return folder / "report.html"


def _in_short(study: Study) -> str:
    """The page's first line."""
    targets = f" ({slo_text(study)})" if slo_text(study) else ""
    return f"{in_short(study, study.series[0], study.rates[0])}{targets}."


def _by_priority(point: Point) -> str:
    table = priorities_table(point)
    return f"<section><h2>By priority</h2><p>Lower numbers are more urgent.</p>{table}</section>" if table else ""


def _study(run: OpenRun) -> Study:
    return Study([Point(run.folder, {}, run.summary)])


def _charts(run: OpenRun, study: Study) -> list[Chart]:
    drawn = {"": (study.series[0], Sample.of(run))}
    charts = [chart(drawn, study, "") for chart in (details.cdf_chart, details.histogram_chart, details.timeline_chart)]
    return [*charts, clients_chart(run)] if "fairness" in run.summary else charts
