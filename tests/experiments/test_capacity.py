"""`experiment=capacity` from the command line to its files, on small workloads."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.capacity import Question, search_all
from experiments.capacity_search import Search
from experiments.composed import CONF, Composed
from experiments.parallel import under_each
from schedulers import SLO, InputError
from tests.experiments.command_line import start, twinserve

SMALL = (
    "experiment=capacity", "cost=roofline", "workload=fixed", "workload.num_requests=40", "workload.rate=64",
    "question.precision=0.5", "question.max_seeds=3", "question.highest=5000",
    "slo.ttft_s=0.1", "question.latencies=[ttft]",
)  # fmt: skip

USUAL = {"schedulers": ["fcfs"], "percentile": 99, "latencies": ["ttft", "tpot"], "share": None, "lowest": 0.01,
         "highest": 100.0, "precision": 0.05, "min_seeds": 3, "max_seeds": 12}  # fmt: skip


def asked(*overrides: str) -> Composed:
    """What a command line asks, in this process."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", [*SMALL, *overrides])
    varied = [override.partition("=")[0] for override in overrides]
    return Composed(config, {"scheduler": "custom" if "scheduler=custom" in overrides else "fcfs"}, varied)


def searched(composed: Composed, *schedulers: str) -> dict[str, Search]:
    """The searches that it makes, in this process alone."""
    question, bases = composed.question(Question), under_each(composed, schedulers)
    criteria = question.criteria(SLO(ttft_s=0.1))
    searches = {label: Search(criteria, question.bounds, 64.0) for label in bases}
    search_all(searches, bases, jobs=1)
    return searches


def test_the_number_of_processes_changes_nothing_and_what_was_tried_is_not_made_again(tmp_path: Path) -> None:
    results = f"results={tmp_path}"
    done = twinserve(*SMALL, "question.schedulers=[fcfs]", results, "jobs=2")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "capacity" / "capacity.json").read_text())["schedulers"]["fcfs"]
    points = sorted((tmp_path / "points").iterdir())
    assert len(points) == 3 * len(found["evaluations"])
    assert {path.name for path in (tmp_path / "capacity").iterdir()} == {
        "capacity.json", "capacity.txt", "figures", "report.html"
    }  # fmt: skip
    made = [point.stat().st_mtime_ns for point in points]
    search = searched(asked(results), "fcfs")["fcfs"]
    assert (search.capacity, list(search.interval)) == (found["capacity"], found["interval"])
    assert [point.stat().st_mtime_ns for point in sorted((tmp_path / "points").iterdir())] == made
    low, high = found["interval"]
    assert low <= found["capacity"] < high


def test_a_policy_of_ones_own_joins_and_if_it_fails_the_others_are_searched_all_the_same(tmp_path: Path) -> None:
    failing = "scheduler._target_=tests.experiments.failing_policies.Raises"
    searches = searched(asked("scheduler=custom", failing, f"results={tmp_path}"), "fcfs")
    assert "step 1: Raises raised KeyError" in searches["Raises"].error
    assert searches["Raises"].capacity is None
    assert searches["fcfs"].capacity is not None


def test_a_policy_given_by_name_joins_too(tmp_path: Path) -> None:
    given = asked("scheduler=vtc", f"results={tmp_path}")
    named = replace(given, choices={"scheduler": "vtc"})
    assert list(under_each(named, ["fcfs", "static"])) == ["vtc", "fcfs", "static"]
    assert list(under_each(named, ["fcfs", "vtc"])) == ["fcfs", "vtc"]
    assert list(under_each(replace(named, varied=[]), ["fcfs"])) == ["fcfs"]  # it is but the usual one


def test_an_interrupted_search_keeps_its_points_and_goes_on_from_there(tmp_path: Path) -> None:
    process = start(*SMALL, "workload.num_requests=300", "question.schedulers=[fcfs]", f"results={tmp_path}", "jobs=2")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("points/*/summary.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "finished points are kept" in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("points/*/summary.json"))
    assert not (tmp_path / "capacity").exists()


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("schedulers", [], "question.schedulers"),
        ("schedulers", "fcfs", "question.schedulers=fcfs: it must be a list"),
        ("percentile", 98, "question.percentile=98: it must be one of"),
        ("latencies", ["ttft", "e2e"], "question.latencies=e2e: it must be ttft or tpot or tbt"),
        ("share", 1.5, "question.share=1.5: it must be at most 1"),
        ("share", "much", "question.share=much"),
        ("lowest", 0, "question.lowest=0"),
        ("highest", 0.001, "question.highest=0.001: it must be at least question.lowest"),
        ("precision", -1, "question.precision=-1"),
        ("min_seeds", 1, "question.min_seeds=1: a confidence interval needs at least 2"),
        ("max_seeds", 2, "question.max_seeds=2: it must be at least question.min_seeds"),
        ("max_seeds", 2.5, "question.max_seeds=2.5: it must be a whole number"),
    ],
)
def test_a_question_of_another_kind_is_refused_by_name(key: str, value: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        Question(**{**USUAL, key: value})  # type: ignore[arg-type]


def test_without_a_target_there_is_nothing_to_meet_and_a_missing_one_binds_nobody() -> None:
    question = Question(**USUAL)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no target for any of question"):
        question.criteria(SLO())
    assert [criterion.name for criterion in question.criteria(SLO(tpot_s=0.1))] == ["TPOT P99"]
    tbt = Question(**{**USUAL, "latencies": ["tbt"]})  # type: ignore[arg-type]
    assert [criterion.path for criterion in tbt.criteria(SLO(tpot_s=0.1))] == [("itl_s", "p99")]
    share = Question(**{**USUAL, "share": 0.9})  # type: ignore[arg-type]
    assert [criterion.name for criterion in share.criteria(SLO())] == ["requests within SLO"]


@pytest.mark.parametrize(
    ("override", "named"),
    [("jobs=0", "jobs=0"), ("question.schedulers=[fcfs,nothing]", "there is no scheduler 'nothing'"),
     ("workload.num_requests=-1", "workload.num_requests=-1"), ("question.rate=3", "question.rate"),
     ("seed=abc", "seed=abc")],
)  # fmt: skip
def test_what_all_points_share_is_refused_in_a_line_before_any_is_made(
    override: str, named: str, tmp_path: Path
) -> None:
    done = twinserve(*SMALL, override, f"results={tmp_path}")
    assert done.returncode in (1, 2)
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "points").exists()


def test_a_workload_without_a_rate_is_refused_in_a_line(tmp_path: Path) -> None:
    done = twinserve("experiment=capacity", "cost=roofline", "workload=closed_loop", f"results={tmp_path}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: workload=closed_loop has no workload.rate, which this experiment")
