"""The plots and the small page of a single run."""

from __future__ import annotations

from html import escape
from pathlib import Path

from experiments.report import details
from experiments.report.charts import Chart, chart_files
from experiments.report.description import RunDescription
from experiments.report.page import chart_section, description_section, page, warnings_section
from experiments.report.samples import Sample
from experiments.report.study import Point, Study
from experiments.report.tables import summary_table
from experiments.storage import StoredRun, read_run, write_files


def plot_run(folder: Path) -> None:
    """Draw a stored run's latency distributions, tokens per step and timeline into its `figures/`, as PNG and PDF.

    Raises:
        InputError: the folder holds no complete run, or cannot be written.
    """
    output: dict[str, bytes] = {}
    for chart in _charts(read_run(folder)):
        output |= chart_files(chart)
    write_files(folder, output)


def write_run_page(folder: Path) -> Path:
    """Draw a stored run as `plot_run` does, and write `report.html` beside; returns the page's path.

    Raises:
        InputError: as `plot_run`.
    """
    run = read_run(folder)
    charts = _charts(run)
    output: dict[str, bytes] = {}
    for chart in charts:
        output |= chart_files(chart)
    title = f"Run {folder.resolve().name}"
    point = Point(folder, {}, run.summary)
    sections = [
        f"<header><h1>{escape(title)}</h1></header>",
        warnings_section(run.summary.get("warnings", ())),
        *map(chart_section, charts),
        f"<section><h2>Figures</h2>{summary_table(point)}</section>",
        description_section(RunDescription(config_yaml=run.config_yaml), {}),
    ]
    output["report.html"] = page(title, sections)
    write_files(folder, output)
    return folder / "report.html"


def _charts(run: StoredRun) -> list[Chart]:
    study = Study([Point(run.folder, {}, run.summary)])
    drawn = {"this run": (study.series[0], Sample.of(run))}
    return [details.cdf_chart(drawn, study, ""), details.histogram_chart(drawn, ""), details.timeline_chart(drawn, "")]
