"""Points made by the real engine."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from experiments import storage
from experiments.run import ensure
from schedulers import InputError
from tests.experiments.command_line import start, twinserve
from tests.experiments.real_points import conversations, engine, tiny_model, workload
from tests.experiments.test_run import point

SIMULATED = {
    "config.yaml", "steps.parquet", "requests.parquet", "token_histogram.csv", "trace.json.gz", "summary.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def command(tiny: Path, tmp_path: Path) -> list[str]:
    return [*engine(tiny), *workload(conversations(tmp_path / "trace.jsonl", 12), tmp_path / "results")]


@pytest.mark.parametrize("decisions", [True, False])
def test_a_real_run_leaves_the_files_of_a_simulated_one_and_its_decisions_if_asked(
    decisions: bool, command: list[str]
) -> None:
    run = point(*command, "mode.in_process=true", f"mode.decisions={decisions}")
    ensure(run)
    expected = SIMULATED | ({"decisions.jsonl.gz"} if decisions else set())
    assert {file.name for file in run.folder.iterdir()} == expected
    assert "(stored before)" in ensure(run)


def test_outputs_end_at_their_hidden_length_and_times_count_from_the_start(command: list[str]) -> None:
    run = point(*command, "mode.in_process=true")
    ensure(run)
    stored = storage.read_run(run.folder)
    wanted = {request.request_id: request for request in run.workload.requests(run.seed)}
    requests, steps = stored.requests, stored.steps
    assert sorted(requests.request_id) == sorted(wanted)
    for number, request_id in enumerate(requests.request_id):
        assert requests.num_output_tokens[number] == wanted[request_id].num_output_tokens
        assert requests.arrival_s[number] == pytest.approx(wanted[request_id].arrival_s, abs=1e-6)
        assert requests.first_scheduled_s[number] >= requests.arrival_s[number]
        assert requests.finish_reason[number] == "stop"
    assert steps.step.tolist() == list(range(1, len(steps) + 1))
    assert 0 <= steps.start_s[0] < steps.end_s[0]
    assert all(end <= start for end, start in pairwise([time for pair in zip(steps.start_s, steps.end_s, strict=True)
                                                        for time in pair]))  # fmt: skip
    assert stored.summary["cost"].startswith("measured on ")


def test_prompts_that_begin_alike_hit_the_prefix_cache_as_often_as_in_the_simulation(
    command: list[str], tmp_path: Path
) -> None:
    # One request at a time, and room for all of them: then what is found does not depend on how long steps take.
    settings = ("engine.num_blocks=400", "scheduler.max_num_seqs=1")
    real = point(*command, "mode.in_process=true", *settings)
    simulated = point(*workload(tmp_path / "trace.jsonl", tmp_path / "results"), *settings)
    found = []
    for run in (real, simulated):
        ensure(run)
        requests = storage.read_run(run.folder).requests
        found.append(dict(zip(requests.request_id, requests.num_cached_tokens.tolist(), strict=True)))
    assert found[0] == found[1]
    assert sum(found[0].values()) > 0


def test_a_sweep_of_real_runs_makes_one_after_the_other_and_the_same_report(command: list[str], tmp_path: Path) -> None:
    swept = ["experiment=sched_sweep", *command, "scheduler=fcfs,chunked_prefill", "workload.rate=100", "seed=0"]
    done = twinserve(*swept)
    assert done.returncode == 0, done.stderr
    assert "sweep of 2 points, measured on " in done.stdout
    assert "[2/2]" in done.stdout
    assert (tmp_path / "results" / "sched_sweep" / "report.html").exists()
    again = twinserve(*swept)
    assert again.stdout.count("(stored before)") == 2
    parallel = twinserve(*swept, "jobs=2")
    assert parallel.returncode == 2
    assert "jobs must be 1 with mode=real" in parallel.stderr


def test_what_only_a_simulation_reads_is_neither_in_a_real_runs_config_nor_in_its_name(command: list[str]) -> None:
    run = point(*command)
    assert not {"device", "cost", "router"} & set(yaml.safe_load(run.config_yaml))
    other = point(*command, "device=h200", "cost=roofline", "router=random")
    assert (other.folder, other.axes) == (run.folder, run.axes)


def test_a_run_on_another_machine_is_another_point(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    here = point(*command).folder
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "elsewhere", "6", "1", "x86_64")))
    assert point(*command).folder != here


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("model.num_layers=3", "model=tiny has num_layers=3, but .* has 2"),
        ("mode.weights=null", "model=tiny has no weights on this machine: give mode.weights=PATH"),
        ("mode.weights=nowhere", "there is no such file or folder"),
        ("mode.dtype=int3", "dtype='int3': it must be auto, float32, bfloat16 or float16"),
        ("mode.num_threads=0", "num_threads=0: it must be a whole number of at least 1"),
        ("+mode.speed=2", "mode: .*'speed'; see conf/mode/real.yaml"),
        ("mode.decisions=maybe", "mode.decisions=maybe"),
        ("engine.num_blocks=null", "engine.num_blocks=null: a real run needs the number of KV blocks"),
    ],
)
def test_what_cannot_be_run_is_refused_before_an_engine_starts(
    argument: str, expected: str, command: list[str]
) -> None:
    with pytest.raises(InputError, match=expected):
        point(*command, argument)


def test_a_request_that_can_never_fit_ends_the_run_with_its_name(command: list[str]) -> None:
    run = point(*command, "mode.in_process=true", "engine.num_blocks=2")
    with pytest.raises(InputError, match=r"the KV cache holds|more than the 32"):
        ensure(run)
    assert not storage.is_complete(run.folder)


def test_ctrl_c_ends_a_real_run_and_its_engine(command: list[str], tmp_path: Path) -> None:
    process = start(*command, "workload.rate=0.1")
    time.sleep(8)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert not list((tmp_path / "results").rglob("summary.json"))
