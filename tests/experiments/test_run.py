"""One run, from its composed config to its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from experiments import storage
from experiments.composed import CONF, Composed
from experiments.config import Engine, Point, read_point
from experiments.run import ensure, simulate_point
from experiments.workloads import NoPrediction, WorkloadRequest
from schedulers import InputError, SchedulerError
from tests.experiments.command_line import ROOT, twinserve
from tests.experiments.points import point
from tests.sim.costs.test_profiled import write_profile


@pytest.mark.parametrize(
    ("override", "named"),
    [
        *((f"~{key}", f"{key} is missing") for key in ("scheduler", "model", "device", "slo", "seed")),
        ("~scheduler.token_budget", "scheduler.token_budget is missing"),
        ("~scheduler._target_", "scheduler._target_ is missing"),
        ("~engine.block_size", "block_size"),
        ("+engine.foo=1", "engine: .*'foo'.*there are block_size"),
        *((f"engine.{key}=word", f"engine.{key}=word: it must be") for key in Engine.__slots__),
        *((f"engine.{key}=null", f"engine.{key}=None") for key in ("block_size", "tensor_parallel", "prefix_caching")),
        ("mode.name=dream", "mode=.*dream.*mode=sim"),
        ("+mode.weights=x", r"unknown key mode\.weights"),
        *((f"seed={seed}", f"seed={seed}: it must be a whole number") for seed in ("abc", "1.5", "-1")),
        ("model.num_layers=abc", "num_layers='abc'; it must be a whole number"),
        ("model.num_layers=null", "num_layers=None"),
        ("device.peak_flops=abc", "peak_flops='abc'; it must be a number"),
        ("device.link_bandwidth=abc", "link_bandwidth='abc'; it must be a number or null"),
        ("device.step_overhead_s=true", "step_overhead_s=True"),
        *((f"workload.{key}=null", f"workload.{key}=None") for key in ("prompt", "output", "arrivals", "classes")),
        *((f"workload.{key}=5", f"workload.{key}=5") for key in ("prompt", "output", "arrivals", "classes")),
        ("workload.classes.urgent=3", "workload.classes.urgent=3"),
        ("workload.classes.urgent.priority=abc", "workload.classes.urgent.priority=abc"),
        ("workload.classes.urgent.priority=0.5", "workload.classes.urgent.priority=0.5"),
        ("+workload.classes.urgent.prompt=3", "workload.classes.urgent.prompt=3"),
    ],
)
def test_a_value_of_another_kind_or_a_node_that_is_gone_is_refused_by_name(override: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        point(override)


@pytest.mark.parametrize("path", ["7", "null"])
def test_a_path_that_is_no_text_is_refused(path: str) -> None:
    with pytest.raises(InputError, match=r"workload\.path|no such file"):
        point("workload=azure_conv", f"workload.path={path}", "workload.num_requests=null").workload.requests(0)


@pytest.mark.parametrize("scheduler", sorted({file.stem for file in (CONF / "scheduler").glob("*.yaml")} - {"custom"}))
def test_every_request_gets_exactly_the_tokens_of_its_hidden_length(scheduler: str) -> None:
    run = point(f"scheduler={scheduler}", "workload.rate=30", "predictor=noisy")
    lengths = {request.request_id: request.num_output_tokens for request in run.workload.requests(run.seed)}
    records = simulate_point(run).requests
    assert {record.request_id: record.num_output_tokens for record in records} == lengths
    assert all(record.finish_reason == "stop" for record in records)
    assert all(len(record.token_times_s) == record.num_output_tokens for record in records)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    contents = []
    for results, seed in (("one", 0), ("two", 0), ("three", 1)):
        run = point(f"results={tmp_path / results}", f"seed={seed}", "workload.rate=20")
        ensure(run)
        contents.append({file.name: file.read_bytes() for file in sorted(run.folder.iterdir()) if file.is_file()})
    assert contents[0] == contents[1]
    assert contents[0]["requests.parquet"] != contents[2]["requests.parquet"]


def test_a_stored_point_is_not_simulated_again_and_a_changed_one_is(tmp_path: Path) -> None:
    results = f"results={tmp_path}"
    assert "(stored before)" not in ensure(point(results))
    assert "(stored before)" in ensure(point(results))
    assert "(stored before)" not in ensure(point(results, "scheduler.token_budget=512"))
    assert "(stored before)" not in ensure(point(results, "slo.ttft_s=0.5"))


def test_a_change_of_the_policys_own_file_makes_a_new_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "changing_policy.py"
    overrides = ("scheduler=custom", "scheduler._target_=changing_policy.Mine", f"results={tmp_path}")
    file.write_text("from schedulers import ChunkedPrefill\n\nclass Mine(ChunkedPrefill):\n    pass\n")
    before = point(*overrides).folder
    file.write_text(file.read_text() + "    # another thought\n")
    assert point(*overrides).folder != before


def test_a_change_of_what_the_policy_imports_from_beside_it_makes_a_new_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "weights_beside.py").write_text("WEIGHT = 1\n")
    (tmp_path / "weighing_policy.py").write_text(
        "from schedulers import ChunkedPrefill\nfrom weights_beside import WEIGHT\n\n"
        "class Mine(ChunkedPrefill):\n    pass\n"
    )
    overrides = ("scheduler=custom", "scheduler._target_=weighing_policy.Mine", f"results={tmp_path}")
    before = point(*overrides).folder
    assert point(*overrides).folder == before
    (tmp_path / "weights_beside.py").write_text("WEIGHT = 2\n")
    assert point(*overrides).folder != before


def test_a_change_of_any_class_that_the_config_names_makes_a_new_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "changing_arrivals.py"
    overrides = ("workload.arrivals._target_=changing_arrivals.Mine", f"results={tmp_path}")
    file.write_text("from experiments.workloads import Poisson\n\nclass Mine(Poisson):\n    pass\n")
    before = point(*overrides).folder
    file.write_text(file.read_text() + "    # another thought\n")
    assert point(*overrides).folder != before


def test_a_change_of_the_tokenizer_makes_a_new_point(tmp_path: Path) -> None:
    talks, tokenizer = tmp_path / "talks.json", tmp_path / "tokenizer.json"
    talks.write_text("[]")
    folders = []
    for content in ("{}", "{ }"):
        tokenizer.write_text(content)
        for named in (tokenizer, tmp_path):
            chosen = ("workload=sharegpt", f"workload.path={talks}", f"workload.tokenizer={named}")
            folders.append(sharegpt_point(*chosen).folder.name)
    assert len(set(folders)) == 4


def test_a_change_of_a_file_under_the_home_folder_makes_a_new_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = set()
    for content in ("[]", "[ ]"):
        (tmp_path / "talks.json").write_text(content)
        folders.add(sharegpt_point("workload=sharegpt", "workload.path='~/talks.json'").folder)
    assert len(folders) == 2


def test_a_change_of_a_profile_makes_a_new_point_be_it_of_a_name_or_behind_a_link(tmp_path: Path) -> None:
    folder, elsewhere = write_profile(tmp_path / "RTX4090" / "Llama-3.1-8B"), tmp_path / "elsewhere"
    table = folder / "tp1" / "after_idle.csv"
    folders = []

    def note() -> None:
        chosen = ("cost=profiled", f"cost.path={folder}", "model=llama-3.1-8b", "device=rtx4090")
        folders.append(point(*chosen).folder.name)

    note()
    table.write_text("tokens,idle_ms,time_us\n16,50,100\n")
    note()
    table.rename(table.with_suffix(".off"))  # prices are those of no table again, though the bytes are there
    note()
    (folder / "tp1").rename(elsewhere)
    (folder / "tp1").symlink_to(elsewhere)
    (elsewhere / "after_idle.csv").write_text("tokens,idle_ms,time_us\n16,50,200\n")
    note()
    (elsewhere / "after_idle.csv").write_text("tokens,idle_ms,time_us\n16,50,300\n")
    note()
    assert len(set(folders)) == 5


def sharegpt_point(*overrides: str) -> Point:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        return read_point(Composed(compose("config", ["cost=roofline", *overrides]), {"scheduler": "fcfs"}, []))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("workload.prompt", [f"{{_target_:experiments.workloads.Fixed,num_tokens:{n}}}" for n in (10, 20)]),
        ("engine.num_blocks", ["null", "5000"]),
        ("workload.num_requests", ["10", "20"]),
        ("scheduler.max_chunk", ["null", "64"]),
    ],
)
def test_whatever_is_varied_tells_points_apart(key: str, values: list[str]) -> None:
    fixed = ("scheduler=chunked_prefill", "workload=fixed")
    one, other = (point(*fixed, f"{key}={value}") for value in values)
    assert one.axes != other.axes
    assert one.name != other.name
    assert "recorded" not in one.name


@pytest.mark.parametrize(
    "name", ["config.yaml", "steps.parquet", "requests.parquet", "token_histogram.csv", "trace.json.gz", "summary.json"]
)
def test_a_stored_point_that_is_damaged_is_made_again(name: str, tmp_path: Path) -> None:
    run = point(f"results={tmp_path}")
    ensure(run)
    file = run.folder / name
    whole = file.read_bytes()
    file.unlink()
    assert "(stored before)" not in ensure(run)
    assert file.read_bytes() == whole
    if name.endswith((".parquet", ".json")):
        for damaged in (whole[:100], b"{}"):
            file.write_bytes(damaged)
            assert "(stored before)" not in ensure(run)
            assert file.read_bytes() == whole
    assert "(stored before)" in ensure(run)


def test_a_stored_point_that_has_lost_its_decisions_is_made_again(tmp_path: Path) -> None:
    run = point(f"results={tmp_path}", "mode.decisions=true")
    ensure(run)
    (run.folder / "decisions.jsonl.gz").unlink()
    assert "(stored before)" not in ensure(run)
    assert "(stored before)" in ensure(run)


class Says(NoPrediction):
    """Predicts anything, or raises it."""

    def __init__(self, said: Any) -> None:
        object.__setattr__(self, "said", said)

    def predict(self, request: WorkloadRequest, seed: int) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@pytest.mark.parametrize("said", ["ten", float("nan"), float("inf"), -1, KeyError("oops")])
def test_a_predictor_that_fails_is_named_with_the_request(said: Any) -> None:
    with pytest.raises(SchedulerError, match=r"(?s)Says (predicts|raised KeyError).*r00000|r00000.*Says raised KeyErr"):
        simulate_point(replace(point("scheduler=srpt", "predictor=oracle"), predictor=Says(said)))


def test_a_policy_outside_the_repository_runs_by_its_import_path(tmp_path: Path) -> None:
    (tmp_path / "mypolicy.py").write_text(
        "from schedulers import ChunkedPrefill\n\n\n"
        "class ShortestPrompt(ChunkedPrefill):\n"
        "    def order(self, request, now):\n"
        "        return request.num_prompt_tokens\n"
    )
    done = twinserve(
        "scheduler._target_=mypolicy.ShortestPrompt",
        "workload.num_requests=20",
        "cost=roofline",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "ShortestPrompt" in done.stdout
    assert list((tmp_path / "results" / "points").glob("ShortestPrompt-*/summary.json"))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Raises", "step 1: Raises raised KeyError: 'oops'"),
        ("Idles", "step 1: Idles schedules nothing although"),
        ("MisordersArrivals", "MisordersArrivals raised AttributeError"),
        ("Loops", "step 1: Loops loops"),
        ("Overspends", "the token budget is 2048"),
    ],
)
def test_a_policy_that_fails_is_named_with_the_step_and_leaves_no_result(
    policy: str, expected: str, tmp_path: Path
) -> None:
    target = f"scheduler._target_=tests.experiments.failing_policies.{policy}"
    run = point("scheduler=custom", target, f"results={tmp_path}")
    with pytest.raises(SchedulerError) as raised:
        ensure(run)
    assert expected in str(raised.value)
    assert not storage.is_complete(run.folder)


def test_a_request_that_can_never_fit_is_named() -> None:
    with pytest.raises(InputError, match="exceed the whole KV cache of 1600 tokens"):
        simulate_point(point("engine.num_blocks=100"))


def test_requests_too_long_for_the_model_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    run = point("engine.max_model_len=1000", "workload.too_long=drop", f"results={tmp_path}")
    ensure(run)
    summary = storage.read_summary(run.folder)
    assert summary["num_dropped"] > 0
    assert summary["num_dropped"] + summary["completed"] == 40


def test_a_run_leaves_its_folder_whole(tmp_path: Path) -> None:
    done = twinserve("workload.num_requests=30", "cost=roofline", f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "points").iterdir()
    names = {file.name for file in folder.iterdir()}
    assert names >= {
        "config.yaml", "steps.parquet", "requests.parquet", "summary.json", "token_histogram.csv", "trace.json.gz",
        "report.html",
    }  # fmt: skip


def test_importing_what_a_simulation_needs_brings_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, experiments.run, experiments.sweep, sim.costs; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'zmq', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
