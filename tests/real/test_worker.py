"""A worker from its config to its steps: how many blocks fit, and what it says when none do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from real.config import EngineConfig
from real.memory import MemoryProbe
from real.model_runner import ModelRunner
from real.sampling_params import SamplingParams
from real.worker import Worker
from schedulers import ChunkedPrefill, InputError, SchedulerError
from tests.real.drive import EOS, VOCAB, make_request
from tests.real.tiny_model import write_tiny_model

MakeWorker = Callable[..., Worker]

#: Keys and values x blocks of 16 tokens x 2 key heads x 32 dimensions x 4 bytes x 2 layers.
BLOCK_BYTES = 2 * 16 * 2 * 32 * 4 * 2


class ShownRunner(ModelRunner):
    """One whose caches can be looked at."""

    @property
    def kv_caches(self) -> list[torch.Tensor]:
        return self._kv_caches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(path)
    return str(path)


@pytest.fixture
def make_worker(folder: str) -> Iterator[MakeWorker]:
    threads = torch.get_num_threads()

    def make(**arguments: object) -> Worker:
        worker = Worker(EngineConfig.from_arguments(model=folder, dtype="float32", device="cpu", **arguments))
        worker.load()
        return worker

    yield make
    torch.set_num_threads(threads)


def test_a_worker_serves_the_steps_of_a_scheduler(make_worker: MakeWorker) -> None:
    worker = make_worker(num_blocks=20)
    worker.allocate_kv_cache(20)
    scheduler = ChunkedPrefill(worker.config.limits(20, worker.model.config.max_model_len))
    requests = [
        make_request(str(i), [5 + i, 6, 7], SamplingParams(seed=i, max_tokens=9, ignore_eos=True), EOS)
        for i in range(3)
    ]
    for request in requests:
        scheduler.add_request(request)
    while scheduler.num_running or scheduler.num_waiting:
        output = scheduler.schedule(0.0)
        scheduler.update_from_output(output, worker.execute_model(output), 0.0)
    worker.shutdown()
    assert [request.num_output_tokens for request in requests] == [9, 9, 9]
    assert all(0 <= token < VOCAB for request in requests for token in request.output_token_ids)


def test_memory_given_in_bytes_is_used_to_the_last_whole_block(make_worker: MakeWorker) -> None:
    assert make_worker(cache_memory_bytes=BLOCK_BYTES * 7 + 1).num_kv_blocks() == 7


def test_no_more_blocks_are_made_than_the_sequences_of_a_batch_can_fill(make_worker: MakeWorker) -> None:
    worker = make_worker(cache_memory_bytes=1 << 30, max_num_seqs=3, max_model_len=100)
    assert worker.num_kv_blocks() == 3 * 7


def test_blocks_are_measured_by_running_the_largest_step(make_worker: MakeWorker) -> None:
    worker = make_worker(memory_utilization=0.01, token_budget=64, max_num_seqs=100_000)
    num_blocks = worker.num_kv_blocks()
    free = MemoryProbe(worker.device).free_bytes()
    assert 0.005 * free < num_blocks * BLOCK_BYTES < 0.015 * free


@pytest.mark.parametrize("arguments", [{"cache_memory_bytes": BLOCK_BYTES - 1}, {"memory_utilization": 1e-9}])
def test_too_little_memory_for_a_block_says_how_much_there_is_and_what_to_change(
    make_worker: MakeWorker, arguments: dict[str, float]
) -> None:
    with pytest.raises(
        InputError, match=rf"{next(iter(arguments))}.*too little for one block of 16 tokens.*more memory"
    ):
        make_worker(**arguments).num_kv_blocks()


def test_more_blocks_than_the_machine_holds_are_refused(make_worker: MakeWorker) -> None:
    with pytest.raises(InputError, match=r"1000000000000 blocks needs .* GB, .*fewer num_blocks"):
        make_worker().allocate_kv_cache(10**12)


@pytest.mark.parametrize(("limit", "mapped"), [(1 << 30, 1.0), (64 << 20, 0.25), (0, 0.0)])
def test_a_cache_is_mapped_at_the_start_up_to_a_limit(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, limit: int, mapped: float
) -> None:
    make_worker().allocate_kv_cache(64)  # a process's first steps need memory of their own
    monkeypatch.setattr("real.worker.MAPPED_AT_START_BYTES", limit)
    worker, size = make_worker(), 256 << 20
    rise = MemoryProbe(worker.device).peak_bytes(lambda: worker.allocate_kv_cache(size // BLOCK_BYTES))
    assert mapped * size * 0.95 <= rise < (mapped + 0.2) * size


def test_the_first_blocks_of_keys_and_of_values_are_mapped(
    make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("real.worker.MAPPED_AT_START_BYTES", 128 << 20)
    worker, num_blocks = make_worker(), (256 << 20) // BLOCK_BYTES
    caches = worker.make_runner(num_blocks, ShownRunner).kv_caches
    first = slice(num_blocks // 2 - 1)
    used = MemoryProbe(worker.device).peak_bytes(lambda: [cache[:, first].fill_(1) for cache in caches])
    assert used < 16 << 20


def test_a_step_before_the_cache_is_refused(make_worker: MakeWorker) -> None:
    scheduler = ChunkedPrefill(EngineConfig.from_arguments(model=make_worker().config.model.model).limits(20, 256))
    with pytest.raises(SchedulerError, match="allocate_kv_cache"):
        make_worker().execute_model(scheduler.schedule(0.0))


def test_a_device_that_is_not_there_is_named(folder: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(InputError, match="device='cuda'"):
        Worker(EngineConfig.from_arguments(model=folder, device="cuda"))


def test_the_peak_of_a_piece_of_work_is_measured_not_what_it_leaves() -> None:
    size = 64 << 20
    peak = MemoryProbe(torch.device("cpu")).peak_bytes(lambda: torch.ones(size, dtype=torch.uint8))
    assert 0.95 * size <= peak < 1.5 * size  # pages that were free already are not counted
