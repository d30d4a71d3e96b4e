"""Reports: one page that needs nothing else, and every figure as PNG and PDF."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.columns import StepColumns
from experiments.report import Point, RunDescription, plot_run, redraw, write_report, write_run_page
from experiments.report.samples import TIMELINE_INTERVALS, timeline_of
from experiments.report.style import CSS_COLORS
from experiments.report.tables import number
from experiments.storage import write_run
from experiments.summary import summarize
from schedulers.errors import InputError
from schedulers.records import StepRecord
from schedulers.request import SLO
from tests.experiments.synthetic import toy_run

HOSTILE = '<script>alert("x")</script> & co'


def make_point(folder: Path, slo: SLO | None, axes: dict[str, Any], **more: Any) -> Point:
    """A stored run of the toy queue; `more` goes into its summary."""
    steps, requests = toy_run(axes["rate"] or 4.0, 40, axes["seed"], 8, static=axes["scheduler"] == "static")
    summary = {**summarize(steps, requests, slo), **more}
    write_run(folder, "seed: 0\n", steps, requests, summary)
    return Point(folder, axes, summary)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two schedulers at two rates, with all that can go wrong."""
    folder = tmp_path_factory.mktemp("sweep")
    points: list[Point] = []
    for scheduler in ("static", HOSTILE):
        for rate in (2.0, 8.0):
            for seed in (0, 1):
                axes = {"scheduler": scheduler, "rate": rate, "seed": seed}
                warnings = ["the profile ends at 512 tokens"] if rate == 8.0 else []
                points.append(make_point(folder / "points" / str(len(points)), SLO(1.0, 0.05), axes, warnings=warnings))
    description = RunDescription(
        command="python -m platform experiment=sched_sweep",
        config_yaml="model: tiny\n",
        cost_model="roofline on a toy",
        versions={"twinserve": "0.1"},
        facts={"Workload": "Poisson"},
        warnings=["mind the gap"],
        failed={"fcfs rate=2": "step 7: no progress"},
    )
    write_report(folder, points[:-1], "Toy sweep", description)
    return folder


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_a_sweep_leaves_a_page_and_every_figure_as_png_and_pdf(sweep: Path) -> None:
    names = {path.stem for path in (sweep / "figures").iterdir()}
    assert names == {
        "latency",
        "goodput",
        "throughput",
        "latency_cdf",
        "ttft_cdf_by_rate",
        "tpot_cdf_by_rate",
        "step_tokens",
        "timeline",
    }
    page = text_of(sweep / "report.html")
    for name in names:
        assert (sweep / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (sweep / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert f'href="figures/{name}.png"' in page


def test_the_page_loads_nothing_from_elsewhere(sweep: Path) -> None:
    page = text_of(sweep / "report.html")
    assert not re.search(r"<link|<img|\bsrc=|@import|url\((?!#)", page)
    assert page.count("<script") == 1


def test_the_page_says_what_was_run_and_what_went_wrong(sweep: Path) -> None:
    page = text_of(sweep / "report.html")
    for said in (
        "python -m platform experiment=sched_sweep",
        "model: tiny",
        "roofline on a toy",
        "twinserve 0.1",
        "Poisson",
        "mind the gap",
        "Failed: fcfs rate=2: step 7: no progress",
        "the profile ends at 512 tokens (3 of 7 runs)",
        "at 8 requests/s, seed 1",
        "95 % confidence intervals over 2 seeds",
    ):
        assert said in page, said


def test_names_are_shown_as_text_and_never_run(sweep: Path) -> None:
    page = text_of(sweep / "report.html")
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page


def test_figures_in_the_page_take_all_their_colours_from_the_theme(sweep: Path) -> None:
    page = text_of(sweep / "report.html")
    figures = "".join(re.findall(r"<svg role.*?</svg>", page, flags=re.DOTALL))
    assert not set(re.findall(r"#[0-9a-f]{6}\b", figures)) & set(CSS_COLORS)
    assert "#000000" not in figures
    declared = set(re.findall(r"(--[\w-]+):", page))
    assert set(re.findall(r"var\((--[\w-]+)\)", page)) <= declared
    assert "prefers-color-scheme: dark" in page


def test_ids_are_unique_and_every_reference_has_its_target(sweep: Path) -> None:
    page = text_of(sweep / "report.html")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_the_table_has_a_row_for_each_point_and_leads_to_its_folder(sweep: Path) -> None:
    body = text_of(sweep / "report.html").split("<tbody>")[1].split("</tbody>")[0]
    assert body.count("<tr>") == 7
    for link in re.findall(r'<a href="([^"]+)"', body):
        assert (sweep / link / "summary.json").is_file()


def test_redrawing_gives_the_same_bytes(sweep: Path) -> None:
    before = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    assert redraw(sweep) == sweep / "report.html"
    assert {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()} == before


def test_redrawing_without_a_point_that_is_gone_says_so(sweep: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sweep, copy)
    shutil.rmtree(copy / "points" / "0")
    page = text_of(redraw(copy, rate=2.0))
    assert "Failed: scheduler=static, rate=2.0, seed=0" in page
    assert "Over time at 2 requests/s" in page


@pytest.mark.parametrize("content", ["", "{}", '{"title": "t", "description": {"oops": 1}, "points": []}', "\x00\x01"])
def test_a_damaged_report_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(InputError, match=r"report\.json"):
        redraw(tmp_path)


def test_a_folder_with_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to draw"):
        redraw(tmp_path)


@pytest.mark.parametrize("rate", [4.0, None])
def test_a_single_rate_without_slo_and_with_one_seed_is_reported_too(tmp_path: Path, rate: float | None) -> None:
    axes = {"scheduler": "fcfs", "rate": rate, "seed": 0}
    page = text_of(write_report(tmp_path, [make_point(tmp_path / "p", None, axes)], "One", RunDescription()))
    assert "One seed: no confidence intervals" in page
    assert "Goodput" not in page


def test_a_run_in_which_nothing_completed_is_reported_too(tmp_path: Path) -> None:
    _, requests = toy_run(num_requests=12)
    aborted = [r._replace(finish_reason="abort", token_times_s=(), first_scheduled_s=None) for r in requests]
    points = []
    for rate in (1.0, 2.0):
        folder = tmp_path / str(rate)
        summary = summarize([], aborted, SLO(1.0))
        write_run(folder, "", [], aborted, summary)
        points.append(Point(folder, {"scheduler": "a", "rate": rate, "seed": 0}, summary))
    page = text_of(write_report(tmp_path, points, "Nothing", RunDescription()))
    assert "a does not sustain even the lowest rate that was tried" in page
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


def test_a_runs_page_shows_its_figures(tmp_path: Path) -> None:
    make_point(tmp_path, SLO(1.0), {"scheduler": "fcfs", "rate": 4.0, "seed": 0}, cost="roofline on a toy")
    page = text_of(write_run_page(tmp_path))
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"latency_cdf", "step_tokens", "timeline"}
    assert "Prefill tokens" in page
    assert "within the SLO (TTFT ≤ 1 s)." in page
    assert "roofline on a toy" in page
    assert "seed: 0" in page
    before = page
    assert text_of(redraw(tmp_path)) == before


def test_plotting_a_run_makes_no_page(tmp_path: Path) -> None:
    make_point(tmp_path, None, {"scheduler": "fcfs", "rate": 4.0, "seed": 0})
    plot_run(tmp_path)
    assert len(list((tmp_path / "figures").iterdir())) == 6
    assert not (tmp_path / "report.html").exists()


def test_a_report_leaves_matplotlib_as_it_was_and_never_touches_pyplot(tmp_path: Path) -> None:
    make_point(tmp_path, None, {"scheduler": "fcfs", "rate": 4.0, "seed": 0})
    script = (
        "import json, sys, pathlib, matplotlib\n"
        "settings = lambda: {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != 'backend'}\n"
        "before = settings()\n"
        "from experiments.report import plot_run\n"
        "plot_run(pathlib.Path(sys.argv[1]))\n"
        "print(json.dumps(['matplotlib.pyplot' in sys.modules, before == settings()]))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    shown = subprocess.run(command, check=True, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert json.loads(shown.stdout) == [False, True]


def test_measuring_and_storing_load_neither_matplotlib_nor_pyarrow() -> None:
    script = (
        "import sys, experiments.storage\nprint([name in sys.modules for name in ('matplotlib', 'pyarrow', 'pandas')])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[3], capture_output=True, text=True
    )
    assert shown.stdout.strip() == "[False, False, False]"


def test_a_timeline_is_the_mean_over_the_steps_of_each_interval() -> None:
    rows = [(0.0, 1.0, 4), (1.0, 3.0, 2), (6.0, 9.0, 5)]
    steps = [StepRecord(i, start, end, 0, 1, 0, n, 0, 0.0, 0) for i, (start, end, n) in enumerate(rows)]
    timeline = timeline_of([StepColumns.of(steps)])
    expected = []
    for time in timeline.time_s:
        low, high = time - 9 / TIMELINE_INTERVALS / 2, time + 9 / TIMELINE_INTERVALS / 2
        overlap = [(max(0.0, min(high, end) - max(low, start)), n) for start, end, n in rows]
        busy = sum(length for length, _ in overlap)
        expected.append(sum(length * n for length, n in overlap) / busy if busy > 1e-9 else 0.0)
    np.testing.assert_allclose(timeline.running, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.04994, "0.0499"), (1.0, "1.00"), (99.96, "100"), (1234.5, "1,234")],
)
def test_numbers_have_three_digits_that_matter(value: float | None, shown: str) -> None:
    assert number(value) == shown
