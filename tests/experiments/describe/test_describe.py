"""`experiment=workload`: what it counts, what it says, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments.composed import CONF, Composed
from experiments.describe import describe
from experiments.describe.figures import nice
from experiments.describe.traffic import Traffic, counts, due_s
from experiments.workloads import ClosedLoop, Fixed, Gamma, OnOff, Synthetic
from schedulers import InputError
from tests.experiments.command_line import twinserve


def traffic(arrivals: Gamma | OnOff, windows_s: list[float]) -> Traffic:
    workload = Synthetic(rate=5, num_requests=20_000, prompt=Fixed(1), output=Fixed(1), arrivals=arrivals)
    return Traffic.of(due_s(workload.requests(0)), windows_s)


def test_poisson_arrivals_have_one_for_both_measures_of_burstiness_at_every_window() -> None:
    poisson = traffic(Gamma(1.0), [1, 10])
    assert poisson.rate == pytest.approx(5, rel=0.03)
    assert poisson.gap_cv == pytest.approx(1, rel=0.03)
    assert [window.dispersion for window in poisson.windows] == pytest.approx([1, 1], rel=0.15)


def test_bursts_show_in_windows_about_as_long_as_they_are() -> None:
    bursty = traffic(OnOff(on_s=10, off_s=30), [0.01, 10])
    assert bursty.windows[0].dispersion == pytest.approx(1, abs=0.4)
    assert bursty.windows[1].dispersion > 50
    assert bursty.windows[1].peak_rate == pytest.approx(20, rel=0.4)


def test_counts_and_their_dispersion_by_hand() -> None:
    times_s = np.array([0.0, 0.5, 1.5, 3.0, 3.1, 3.2, 4.0])
    assert counts(times_s, 1.0).tolist() == [2, 1, 0, 3, 1]
    (window,) = Traffic.of(times_s, [1.0, 60.0]).windows  # the last second is not over, and no minute passes
    assert (window.dispersion, window.peak_rate) == (pytest.approx(1.25 / 1.5), 3)


def test_arrivals_at_once_have_no_rate_and_no_gaps() -> None:
    at_once = Traffic.of(np.zeros(9), [1.0])
    assert (at_once.rate, at_once.gap_cv, at_once.windows, at_once.span_s) == (None, None, [], 0.0)


def test_requests_that_follow_others_are_due_when_those_are_and_their_clients_have_thought() -> None:
    users = ClosedLoop(num_users=2, think_s=3, num_requests=6, prompt=Fixed(9), output=Fixed(9)).requests(0)
    due = dict(zip([request.request_id for request in users], due_s(users).tolist(), strict=True))
    for request in users:
        expected = due[request.follows] + request.think_s if request.follows else request.arrival_s
        assert due[request.request_id] == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.9, 1), (1, 1), (1.1, 2), (3, 5), (29.5, 50), (70, 100)])
def test_windows_of_figures_have_round_lengths(seconds: float, expected: float) -> None:
    assert nice(seconds) == expected


def composed(*overrides: str) -> Composed:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["experiment=workload", *overrides])
    return Composed(config, {"workload": overrides[0].partition("=")[2]}, [])


@pytest.mark.parametrize("name", ["sessions", "all_at_once", "closed_loop"])
def test_a_workload_is_described_in_a_table_and_a_figure(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    describe(composed(f"workload={name}", f"results={tmp_path}", "question.cache_blocks=[1000]"))
    said = capsys.readouterr().out
    assert "  prompt  " in said
    assert ("turns: mean 4" in said) == (name == "sessions")
    assert ("any size" in said) == (name == "sessions")
    folder = tmp_path / "workload" / name
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"summary.json", "report.html", "figures/workload.png", "figures/workload.pdf"}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["requests"] == summary["classes"][""] > 900
    assert summary["lengths"]["prompt"]["p50"] > 500


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("question.windows_s=5", r"question\.windows_s=5: it must be a list"),
        ("question.windows_s=[0]", r"question\.windows_s=0"),
        ("question.cache_blocks=[1.5]", r"question\.cache_blocks=1\.5"),
        ("question.block_size=0", r"question\.block_size=0"),
        ("engine.block_size=0", r"engine\.block_size=0"),
        ("+question.size=0", r"unknown key question\.size"),
        ("question.cache_blocks=[2]", r"question\.cache_blocks=2: request 's"),
        ("seed=-1", "seed=-1"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(argument: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        describe(composed("workload=sessions", "workload.num_sessions=20", argument, f"results={tmp_path}"))
    assert not list(tmp_path.iterdir())


def test_a_refusal_is_one_line_for_a_person(tmp_path: Path) -> None:
    done = twinserve("experiment=workload", "workload=burstgpt", f"workload.path={tmp_path}", f"results={tmp_path}")
    assert done.returncode == 2
    assert done.stderr == f"error: workload.path={tmp_path}: this is a folder; name the trace file in it\n"
