"""Executors: how a step reaches the workers."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any, cast

import psutil  # type: ignore[import-untyped]
import pytest

from real import LLM, EngineDeadError, SamplingParams
from real.config import EngineConfig
from real.core_client import ProcessCore
from real.errors import WorkerDiedError
from real.executors.one_process import OneProcess
from real.executors.processes import Processes
from real.executors.ray_actors import RayActors
from real.shared_ring import RingReader, RingWriter, create_ring
from schedulers import InputError, SchedulerOutput, StepResult
from tests.real.stand_in import StandInProcesses, StandInWorker, expected


def config(**arguments: Any) -> EngineConfig:
    return EngineConfig.from_arguments(**{"skip_tokenizer": True, "num_blocks": 64} | arguments)


class ClumsyWorker(StandInWorker):
    """Rank 1 drops what it is given."""

    def allocate_kv_cache(self, num_blocks: int) -> None:
        if self.rank == 1:
            raise ZeroDivisionError("dropped it")


class PickyWorker(StandInWorker):
    """Refuses its config."""

    def load(self) -> None:
        raise InputError("dtype='float16': not on this device")


class SuicidalWorker(StandInWorker):
    """Dies in its first step."""

    def execute_model(self, output: SchedulerOutput) -> StepResult | None:
        os.kill(os.getpid(), signal.SIGKILL)
        return None


class SuicidalRay(RayActors):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, SuicidalWorker)


class StandInRay(RayActors):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, StandInWorker)


class NarrowWorker(StandInWorker):
    """Finds less memory the higher its rank, on the last one none."""

    def num_kv_blocks(self) -> int:
        return 10 * (self.config.parallel.tensor_parallel - 1 - self.rank)


def num_open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_every_reader_of_the_ring_gets_every_message_whole_and_in_order() -> None:
    handle = create_ring(num_readers=3, capacity=1000)
    writer = RingWriter(handle, while_full=lambda: None)
    source = random.Random(0)
    messages = [source.randbytes(source.choice([0, 1, 7, 100, 999, 1000, 5000])) for _ in range(200)]
    got: list[list[bytes]] = [[], [], []]

    def read(index: int) -> None:
        reader = RingReader(handle, index)
        got[index] = [reader.receive() for _ in messages]

    threads = [threading.Thread(target=read, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for message in messages:
        writer.send(message)
    for thread in threads:
        thread.join()
    writer.close()
    assert got == [messages] * 3


def test_a_writer_to_a_full_ring_asks_whether_its_readers_live() -> None:
    def all_are_dead() -> None:
        raise WorkerDiedError("all readers are dead")

    writer = RingWriter(create_ring(num_readers=1, capacity=100), while_full=all_are_dead)
    writer.send(b"x" * 80)
    with pytest.raises(WorkerDiedError):
        writer.send(b"x" * 80)
    writer.close()


def test_one_process_refuses_to_be_two() -> None:
    with pytest.raises(InputError, match="executor='one_process' holds one worker"):
        OneProcess(config(executor="one_process", tensor_parallel=2), StandInWorker)


@pytest.mark.parametrize("in_process", [False, True])
def test_several_processes_give_the_tokens_of_one(in_process: bool) -> None:
    arguments: dict[str, Any] = {"skip_tokenizer": True, "num_blocks": 64, "in_process": in_process}
    with LLM(executor=StandInProcesses, tensor_parallel=2, **arguments) as llm:
        outputs = llm.generate([[1, 2], [3]], SamplingParams(max_tokens=20))
    assert [output.outputs[0].token_ids for output in outputs] == [expected([1, 2], 20), expected([3], 20)]


def test_the_smallest_cache_of_all_workers_counts_and_none_at_all_is_refused() -> None:
    with pytest.raises(InputError, match="does not hold a single block of 16 tokens"):
        Processes(config(num_blocks=None, tensor_parallel=2), NarrowWorker)


def test_what_a_worker_refuses_is_told_in_its_words() -> None:
    with pytest.raises(InputError, match="dtype='float16': not on this device"):
        Processes(config(tensor_parallel=2), PickyWorker)


def test_a_worker_that_fails_is_named_and_nothing_of_the_group_is_left(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = num_open_fds()
    with pytest.raises(
        WorkerDiedError,
        match=r"twinserve: worker 1 of 2 failed in step 0: ZeroDivisionError: dropped it \(.*line \d+\)",
    ):
        Processes(config(tensor_parallel=2), ClumsyWorker)
    assert "dropped it" in capfd.readouterr().err
    assert num_open_fds() == before
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.real.tiny_model import write_tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder, vocab_size=256)
    return str(folder)


def tokens_of_tiny_llama(folder: str, **arguments: Any) -> list[list[int]]:
    """Greedy tokens of prompts in chunks, with preemptions, from float32 weights."""
    prompts = [[(7 * number + 3 * position) % 256 for position in range(20 + number)] for number in range(6)]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(
        folder,
        skip_tokenizer=True,
        dtype="float32",
        num_threads=1,
        block_size=8,
        num_blocks=16,
        token_budget=32,
        **arguments,
    ) as llm:
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def test_tensor_parallel_processes_and_ray_actors_give_the_tokens_of_one_process(tiny_llama: str) -> None:
    pytest.importorskip("ray")
    alone = tokens_of_tiny_llama(tiny_llama, in_process=True)
    assert tokens_of_tiny_llama(tiny_llama, tensor_parallel=2) == alone
    assert tokens_of_tiny_llama(tiny_llama, tensor_parallel=2, executor="ray") == alone


def test_more_processors_than_the_ray_cluster_has_are_refused_rather_than_waited_for() -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"executor='ray': 2 workers need 2000 CPUs, and the cluster has \d+; give it"):
        LLM(executor=StandInRay, skip_tokenizer=True, num_blocks=64, tensor_parallel=2, num_threads=1000)


def test_a_killed_core_leaves_nothing_of_its_ray_cluster() -> None:
    pytest.importorskip("ray")
    with LLM(executor=StandInRay, skip_tokenizer=True, num_blocks=64, num_threads=1) as llm:
        core = psutil.Process(cast("ProcessCore", llm.engine.core).pid)
        family = core.children(recursive=True)
        assert any("TwinserveWorker" in " ".join(member.cmdline()) for member in family)
        core.kill()
        with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
            llm.generate([[1]])
        _, left = psutil.wait_procs(family, timeout=5)
        assert [member.name() for member in left] == []


def test_a_ray_actor_that_dies_ends_every_request() -> None:
    pytest.importorskip("ray")
    with (
        LLM(executor=SuicidalRay, skip_tokenizer=True, num_blocks=64) as llm,
        pytest.raises(EngineDeadError, match="a Ray actor died"),
    ):
        llm.generate([[1]])
