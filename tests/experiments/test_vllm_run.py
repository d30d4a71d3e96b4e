"""What is read from the records of a real run, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments.vllm_run import VLLMRun
from schedulers import InputError
from tests.experiments.vllm_runs import REQUESTS, write_meta, write_prompts, write_run
from tests.shared import shared
from tests.sim.test_overlapped import OneSecond


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "bench" / "run", OneSecond())


def test_limits_are_the_engines_own_and_one_block_is_nobodys(folder: Path) -> None:
    assert VLLMRun.read(folder).settings() == {
        "scheduler.token_budget": 64,
        "scheduler.max_num_seqs": 4,
        "engine.block_size": 16,
        "engine.num_blocks": 99,
        "engine.memory_utilization": 0.9,
        "engine.tensor_parallel": 1,
        "engine.prefix_caching": False,
        "engine.max_model_len": 1024,
    }


def test_what_the_engine_resolved_goes_before_what_it_was_given(folder: Path) -> None:
    scheduler = {"max_num_seqs": 3, "max_num_batched_tokens": 32, "async_scheduling": False}
    write_meta(folder, resolved_config={"scheduler_config": scheduler, "lora_config": None})
    run = VLLMRun.read(folder)
    assert run.settings()["scheduler.max_num_seqs"] == 3
    assert run.settings()["scheduler.token_budget"] == 32
    assert not run.async_scheduling


def test_steps_were_decided_ahead_unless_the_run_says_otherwise(folder: Path) -> None:
    assert VLLMRun.read(folder).async_scheduling


def test_gzipped_requests_are_read_as_plain_ones_in_order_of_arrival(folder: Path) -> None:
    plain = VLLMRun.read(folder)
    file = folder / "requests.jsonl"
    lines = file.read_text().splitlines()
    (folder / "requests.jsonl.gz").write_bytes(gzip.compress("\n".join(reversed(lines)).encode()))
    file.unlink()
    again = VLLMRun.read(folder)
    assert again.ids == plain.ids
    assert (again.queued_s == plain.queued_s).all()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"data_parallel_size": 2}, "data_parallel_size=2; only runs of a single engine"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"enable_expert_parallel": True, "tensor_parallel_size": 2}, "enable_expert_parallel over 2 devices"),
        ({"max_num_batched_tokens": None}, r"meta\.json does not tell max_num_batched_tokens"),
        ({"max_num_seqs": None}, r"meta\.json does not tell max_num_seqs"),
    ],
)
def test_runs_that_cannot_be_simulated_are_refused_by_name(
    folder: Path, kwargs: dict[str, object], message: str
) -> None:
    write_meta(folder, kwargs)
    with pytest.raises(InputError, match=message):
        VLLMRun.read(folder).settings()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("first_token_ts", None, "line 1: first_token_ts is None; every request must have been served to its end"),
        ("last_token_ts", 1.0, "line 1: queued_ts, scheduled_ts, first_token_ts, last_token_ts must follow"),
        ("input_toks", 0, "line 1: input_toks is 0"),
        ("output_toks", 2.5, "line 1: output_toks is 2.5"),
    ],
)
def test_a_request_that_was_not_served_is_refused_with_its_line(
    folder: Path, key: str, value: object, message: str
) -> None:
    file = folder / "requests.jsonl"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps({**json.loads(first), key: value}), *others]))
    with pytest.raises(InputError, match=message):
        VLLMRun.read(folder)


@pytest.mark.parametrize("name", ["meta.json", "requests.jsonl"])
def test_a_missing_or_broken_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    with pytest.raises(InputError, match=rf"{name}.*this is not JSON"):
        VLLMRun.read(folder)
    (folder / name).unlink()
    with pytest.raises(InputError, match=rf"question\.run=.* {name}"):
        VLLMRun.read(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"question\.run=.*nowhere: there is no such folder"):
        VLLMRun.read(tmp_path / "nowhere")


def test_prompts_are_found_above_the_run_and_say_which_prefixes_are_shared(folder: Path, tmp_path: Path) -> None:
    digest = write_prompts(tmp_path / "workloads" / "prompts.jsonl")
    write_meta(folder, dataset_path="workloads/prompts.jsonl", dataset_hash=digest)
    run = VLLMRun.read(folder)
    requests = run.requests(run.prompts_file())
    hashes = [request.block_hashes(16) for request in requests]
    assert [len(found) for found in hashes] == [prompt // 16 for _, prompt, _ in REQUESTS]
    assert len({found[0] for found in hashes[::3]}) == 1
    assert len({found[0] for found in hashes}) == 1 + len(hashes) - len(hashes[::3])


def test_other_prompts_than_the_runs_are_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "workloads" / "prompts.jsonl"
    digest = write_prompts(file)
    write_meta(folder, dataset_path="workloads/prompts.jsonl", dataset_hash=digest)
    file.write_text(file.read_text().replace('"input_toks": 20', '"input_toks": 21'))
    with pytest.raises(InputError, match="has the SHA-256"):
        VLLMRun.read(folder).prompts_file()
    file.write_text("\n".join(file.read_text().splitlines()[1:]))
    with pytest.raises(InputError, match="has 23 prompts, and the run 24 requests"):
        VLLMRun.read(folder).requests(file)


def test_without_its_prompts_a_run_can_still_be_read(folder: Path) -> None:
    write_meta(folder, dataset_path="workloads/prompts.jsonl")
    run = VLLMRun.read(folder)
    assert run.prompts_file() is None
    assert [request.block_hashes(16) for request in run.requests(None)] == [[]] * len(REQUESTS)


def test_the_published_runs_tell_their_limits_and_prompts() -> None:
    bench = shared("data/vllm_runs/bench")
    for device, blocks, slots in (("RTX4090", 2587, 256), ("RTXPRO6000", None, 128)):
        run = VLLMRun.read(bench / device / "Llama-3.1-8B")
        assert (run.device, run.model, run.async_scheduling) == (device.lower(), "llama-3.1-8b", True)
        settings = run.settings()
        assert (settings["engine.num_blocks"], settings["scheduler.max_num_seqs"]) == (blocks, slots)
        assert (run.prompts_file() or Path()).name == "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"
