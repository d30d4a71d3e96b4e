"""Sweeps: many points, several processes, one report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.composed import Composed
from experiments.sweep import lock
from tests.experiments import failing_policies
from tests.experiments.command_line import ROOT, start, twinserve

SMALL = (
    "experiment=sched_sweep", "cost=roofline", "workload.num_requests=30", "scheduler=fcfs,chunked_prefill",
    "workload.rate=5,20", "seed=0,1",
)  # fmt: skip


def contents(results: Path) -> dict[str, bytes]:
    """All that the points of a sweep left."""
    return {str(file.relative_to(results)): file.read_bytes() for file in sorted((results / "points").rglob("*.*"))}


def test_a_sweep_leaves_every_point_and_one_report(tmp_path: Path) -> None:
    done = twinserve(*SMALL, f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "[8/8]" in done.stdout
    assert f"report: {tmp_path}/sched_sweep/report.html" in done.stdout
    assert len(list((tmp_path / "points").glob("*/summary.json"))) == 8
    page = (tmp_path / "sched_sweep" / "report.html").read_text()
    assert "fcfs" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_the_number_of_processes_changes_no_byte(tmp_path: Path) -> None:
    for jobs in (1, 2):
        done = twinserve(*SMALL, f"results={tmp_path / str(jobs)}", f"hydra.launcher.n_jobs={jobs}")
        assert done.returncode == 0, done.stderr
    one = {name: data for name, data in contents(tmp_path / "1").items() if not name.endswith(".html")}
    two = {name: data for name, data in contents(tmp_path / "2").items() if not name.endswith(".html")}
    assert one == two


def test_a_workload_with_a_pace_of_its_own_is_swept_without_rates(tmp_path: Path) -> None:
    users = ("workload=closed_loop", "workload.num_users=2,4", "workload.num_requests=10", "cost=roofline")
    done = twinserve("experiment=sched_sweep", *users, "scheduler=fcfs,vtc", "seed=0", f"results={tmp_path}", "jobs=1")
    assert done.returncode == 0, done.stderr
    notes = sorted((tmp_path / "sched_sweep" / "jobs").glob("*.json"))
    axes = [json.loads(note.read_text())["axes"] for note in notes]
    assert [(point["scheduler"], point["workload.num_users"]) for point in axes] == [
        ("fcfs", 2), ("fcfs", 4), ("vtc", 2), ("vtc", 4),
    ]  # fmt: skip
    assert "At the workload&#x27;s own pace" in (tmp_path / "sched_sweep" / "report.html").read_text()


def test_an_interrupted_sweep_keeps_its_points_and_goes_on_from_there(tmp_path: Path) -> None:
    process = start(*SMALL, "workload.num_requests=400", f"results={tmp_path}", "hydra.launcher.n_jobs=1")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("points/*/summary.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "finished points are kept" in said
    assert "Traceback" not in said
    finished = len(list(tmp_path.glob("points/*/summary.json")))
    assert 0 < finished < 8
    assert not [file for file in tmp_path.rglob("*") if "tmp" in file.name]
    again = twinserve(*SMALL, "workload.num_requests=400", f"results={tmp_path}")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("(stored before)") == finished


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(
    "where", ["scheduler._target_=Interrupted", "workload._target_=InterruptedWorkload", "ask=ask"]
)
def test_an_error_that_covers_ctrl_c_is_ctrl_c(where: str, jobs: int, tmp_path: Path) -> None:
    override = where.replace("_target_=", f"_target_={failing_policies.__name__}.").replace("=ask", f"={__name__}.ask")
    done = twinserve(*SMALL, override, f"hydra.launcher.n_jobs={jobs}", f"results={tmp_path}")
    assert done.returncode == 130, done.stderr
    assert "interrupted; finished points are kept" in done.stderr
    assert "error: " not in done.stderr
    assert "Traceback" not in done.stderr


def ask(composed: Composed) -> None:
    """An experiment that Ctrl-C reaches within OmegaConf, whose own clean-up fails then."""
    try:
        raise KeyboardInterrupt
    finally:
        OmegaConf.update(composed.config, "", 1)


def test_a_point_that_fails_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    done = twinserve(*SMALL, "workload.rate=-1,20", f"results={tmp_path}")
    assert done.returncode == 1
    assert "workload.rate=-1: it must be a finite number above 0" in done.stderr
    assert "(and 3 more)" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "sched_sweep" / "report.html").exists()
    assert len(list((tmp_path / "points").glob("*/summary.json"))) == 4


def test_what_all_points_share_is_checked_before_any_starts(tmp_path: Path) -> None:
    done = twinserve(*SMALL, "engine.max_model_len=50", f"results={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    assert "[" not in done.stdout


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("results=one,two", "results must have one value"),
        ("workload.rate=interval(1,4)", "INTERVAL_SWEEP"),
        ("engine.block_size=abc,word", "engine.block_size=abc"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_a_line(override: str, expected: str, tmp_path: Path) -> None:
    done = twinserve(*SMALL, f"results={tmp_path}", override, folder=tmp_path)
    assert done.returncode in (1, 2)
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_sweep_into_a_folder_at_work_is_refused_and_one_after_it_is_not(tmp_path: Path) -> None:
    held = lock(tmp_path / "sched_sweep")
    done = twinserve(*SMALL, f"results={tmp_path}")
    assert done.returncode == 2
    assert "another sweep is at work" in done.stderr
    assert not (tmp_path / "points").exists()
    held.close()
    lock(tmp_path / "sched_sweep").close()


def test_a_seed_given_twice_counts_once_and_a_choice_may_be_written_as_hydra_does(tmp_path: Path) -> None:
    done = twinserve(*SMALL, "scheduler=choice(fcfs,static)", "seed=0,0", "workload.rate=5", f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "sched_sweep" / "report.json").read_text())
    assert len(report["points"]) == 2


def test_a_reader_of_a_sweep_may_leave_early(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "platform", *SMALL, f"results={tmp_path}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert "Traceback" not in process.stderr.read()
    process.wait(timeout=60)


def test_stored_results_are_drawn_again(tmp_path: Path) -> None:
    assert twinserve(*SMALL, f"results={tmp_path}").returncode == 0
    page = tmp_path / "sched_sweep" / "report.html"
    drawn = page.read_bytes()
    page.unlink()
    done = twinserve("experiment=plot", f"path={page.parent}")
    assert done.returncode == 0, done.stderr
    assert page.read_bytes() == drawn
    outcome = json.loads((page.parent / "jobs" / "0000.json").read_text())
    done = twinserve("experiment=plot", f"path={outcome['folder']}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("path", "named"), [("nowhere", "nowhere"), ("null", "path=None"), ("5", "path=5")])
def test_drawing_what_is_not_there_is_one_error(path: str, named: str) -> None:
    done = twinserve("experiment=plot", f"path={path}")
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_two_policies_of_ones_own_are_compared_by_their_paths(tmp_path: Path) -> None:
    targets = "scheduler._target_=schedulers.FCFS,schedulers.ChunkedPrefill"
    done = twinserve("experiment=sched_sweep", targets, "workload.num_requests=20", "workload.rate=5", "seed=0",
                     "cost=roofline", f"results={tmp_path}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "FCFS" in done.stdout
    assert "ChunkedPrefill" in done.stdout
