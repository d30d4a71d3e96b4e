"""Records that are written as they come, and the figures that are gathered from them piece by piece."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments import recording, run, storage
from experiments.columns import RequestColumns, StepColumns
from experiments.recording import Recording
from experiments.report.samples import timeline_of
from experiments.storage import read_run
from experiments.summary import summarize, summarize_pieces
from experiments.trace import perfetto_trace, trace_of_pieces
from schedulers import SLO, InputError
from tests.experiments.command_line import ROOT
from tests.experiments.points import point
from tests.experiments.synthetic import toy_run


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups so small that a short run has many."""
    monkeypatch.setattr(recording, "STEPS_A_GROUP", 64)
    monkeypatch.setattr(recording, "REQUESTS_A_GROUP", 16)


@pytest.mark.usefixtures("small_groups")
def test_a_run_in_many_pieces_is_the_run_in_one(tmp_path: Path) -> None:
    steps, requests = toy_run(num_requests=100, slo=SLO(ttft_s=1.0))
    with Recording(tmp_path) as kept:
        kept.take(steps, requests)
        kept.close()
        assert pq.ParquetFile(kept.files["requests.parquet"]).num_row_groups == 7
        found = summarize_pieces(kept.steps, kept.requests, SLO(tpot_s=0.02))
        exact = summarize(steps, requests, SLO(tpot_s=0.02))
        assert _flat(found) == pytest.approx(_flat(exact), rel=1e-12)
        assert trace_of_pieces(kept.steps, kept.requests) == perfetto_trace(steps, requests)
        course, whole = timeline_of(kept.steps), timeline_of([StepColumns.of(steps)])
        for values, of_all in ((course.waiting, whole.waiting), (course.running, whole.running)):
            np.testing.assert_allclose(values, of_all, atol=1e-9)
        storage.write_recording(tmp_path, "seed: 0\n", kept, found)
    stored = read_run(tmp_path)
    assert stored.requests.request_id == [request.request_id for request in requests]
    np.testing.assert_array_equal(stored.steps.start_s, [step.start_s for step in steps])


def _flat(node: object, path: str = "") -> dict[str, object]:
    """All figures of a summary by their path; those that do not exist as -1."""
    if not isinstance(node, dict):
        return {path: -1 if node is None else node}
    return {key: value for name, inner in node.items() for key, value in _flat(inner, f"{path}.{name}").items()}


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with Recording(tmp_path / "run") as kept:
            kept.take(*toy_run(num_requests=10))
            kept.close()
            assert kept.files["steps.parquet"].exists()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("small_groups")
def test_a_disk_that_fills_up_in_the_middle_of_a_run_ends_it_with_one_message(tmp_path: Path) -> None:
    script = (
        "import pathlib, resource, sys\n"
        "from experiments.recording import Recording\n"
        "from tests.experiments.synthetic import toy_run\n"
        "from schedulers.errors import InputError\n"
        "import experiments.recording as recording\n"
        "recording.STEPS_A_GROUP = 64\n"
        "run = toy_run(num_requests=200)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n    with Recording(pathlib.Path(sys.argv[1])) as kept:\n        kept.take(*run)\n"
        "except InputError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    shown = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    assert shown.stdout.startswith(f"cannot write results to {tmp_path / 'run'}: ")
    assert not (tmp_path / "run").exists()


def test_the_figures_of_a_cluster_are_those_of_all_its_engines_and_of_each(tmp_path: Path) -> None:
    cluster = point("workload=fixed", "workload.rate=6", "engine.replicas=3", f"results={tmp_path}")
    run.ensure(cluster)
    stored = read_run(cluster.folder)
    summary, steps, requests = stored.summary, stored.steps, stored.requests
    assert list(summary["by_replica"]) == ["0", "1", "2"]
    durations = steps.end_s - steps.start_s
    for replica in range(3):
        mine, served = steps.replica == replica, requests.replica == replica
        figures = summary["by_replica"][str(replica)]
        assert figures["requests"] == served.sum() > 0
        assert figures["steps"] == mine.sum()
        busy = durations[mine].sum()
        assert figures["busy_share"] == pytest.approx(busy / summary["makespan_s"])
        assert figures["kv_usage"]["mean"] == pytest.approx((steps.kv_usage * durations)[mine].sum() / busy)
        assert figures["kv_usage"]["max"] == steps.kv_usage[mine].max()
        assert figures["running"]["max"] == steps.num_running[mine].max()
    assert summary["busy_share"] == pytest.approx(durations.sum() / summary["makespan_s"] / 3)
    assert summary["busy_share"] <= 1
    assert summary["throughput"]["output_tokens_per_s"] == pytest.approx(
        sum(engine["output_tokens_per_s"] for engine in summary["by_replica"].values())
    )
    assert summary["warnings"] == []


def test_an_engine_that_never_worked_counts_among_the_idle() -> None:
    busy = summarize_pieces(*_one_step(), None, replicas=1)
    shared = summarize_pieces(*_one_step(), None, replicas=4)
    assert shared["busy_share"] == pytest.approx(busy["busy_share"] / 4)
    assert shared["by_replica"]["3"] == {
        "requests": 0, "output_tokens_per_s": 0.0, "prefix_cache_hit_share": None, "steps": 0, "busy_share": 0.0,
        "batch_size": {"mean": None}, "kv_usage": {"mean": None, "max": None}, "running": {"mean": None, "max": None},
        "waiting": {"mean": None, "max": None}, "preemptions": 0,
    }  # fmt: skip


def _one_step() -> tuple[list[StepColumns], list[RequestColumns]]:
    steps, requests = toy_run(num_requests=2)
    return [StepColumns.of(steps)], [RequestColumns.of(requests)]


def test_simulated_time_does_not_depend_on_wall_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import random
    import time

    def bytes_of(results: str) -> dict[str, bytes]:
        made = point("workload.rate=30", "engine.replicas=2", f"results={tmp_path / results}")
        run.ensure(made)
        return {file.name: file.read_bytes() for file in made.folder.iterdir()}

    usual = bytes_of("usual")
    chance = random.Random(0)
    for clock in ("time", "perf_counter", "monotonic", "process_time"):
        monkeypatch.setattr(time, clock, lambda: chance.uniform(0, 1e9))  # a clock that jumps to and fro
    assert bytes_of("mad") == usual


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (("mode=real", "model=smollm2-135m"), "engine.replicas=2: mode=real serves with one engine"),
        (("mode.decisions=true",), "engine.replicas=2: decisions are kept of a single engine"),
        (("cost=recorded", "cost.path=somewhere"), "engine.replicas=2: cost=recorded has the steps of a single engine"),
        (("~router._target_",), r"router\._target_ is missing"),
        (("router._target_=sim.routing.Nobody",), "has no class 'Nobody'"),
        (("+router.foo=1",), "router: RoundRobin cannot be made with foo"),
        (("router=prefix_affinity", "router.max_lead=-1"), r"router\.max_lead=-1"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused_by_name(overrides: tuple[str, ...], named: str) -> None:
    with pytest.raises(InputError, match=named):
        run.simulate_point(point("engine.replicas=2", *overrides))
