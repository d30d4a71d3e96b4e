"""Shapes of models, figures of devices, and the KV blocks that fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedulers.errors import InputError
from sim.hardware import check_tensor_parallel, num_kv_blocks
from tests.sim.conf import device, model, names


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # model.safetensors.index.json or the model card of each.
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-2-7b", 6_738_415_616),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-30b-a3b-instruct-2507", 30_532_122_624),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameters_are_as_many_as_published(name: str, published: int) -> None:
    assert model(name).num_parameters == pytest.approx(published, rel=1e-4)


def test_every_model_and_device_in_conf_loads_under_its_own_name() -> None:
    assert [model(name).name for name in names("model")] == names("model")
    assert [device(name).name for name in names("device")] == names("device")


def test_a_token_of_llama_takes_128_kib_of_kv_cache() -> None:
    assert model("llama-3.1-8b").kv_bytes_per_token == 128 * 1024


def test_kv_blocks_are_what_the_weights_leave() -> None:
    llama, gpu = model("llama-3.1-8b"), device("h200")
    blocks = num_kv_blocks(llama, gpu, 16)
    used = llama.weight_bytes + blocks * 16 * llama.kv_bytes_per_token
    assert used <= 0.9 * gpu.memory_bytes < used + 16 * llama.kv_bytes_per_token


def test_the_block_count_is_an_upper_bound_of_what_vllm_found() -> None:
    """vLLM 0.19 found 2,588 on this device; activations, CUDA graphs and the runtime take the rest."""
    assert num_kv_blocks(model("llama-3.1-8b"), device("rtx4090"), 16) == 3178


def test_tensor_parallelism_makes_room() -> None:
    llama, gpu = model("llama-3.1-70b"), device("h100")
    counts = [num_kv_blocks(llama, gpu, 16, tensor_parallel=degree) for degree in (4, 8)]
    assert 0 < counts[0] < counts[1]


def test_a_model_that_does_not_fit_is_refused_with_the_bytes_it_needs_and_the_bytes_there_are() -> None:
    with pytest.raises(InputError, match=r"llama-3.1-70b does not fit on rtx4090.*141,\d+.*leaves 22,725,564,825"):
        num_kv_blocks(model("llama-3.1-70b"), device("rtx4090"), 16)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"block_size": 0}, "block_size=0"),
        ({"block_size": 16, "memory_utilization": 1.5}, "memory_utilization=1.5"),
        ({"block_size": 16, "memory_utilization": 0.0}, "memory_utilization=0"),
        ({"block_size": 16, "tensor_parallel": 3}, "tensor_parallel=3"),
        ({"block_size": 16, "tensor_parallel": 0}, "tensor_parallel=0"),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(InputError, match=named):
        num_kv_blocks(model("llama-3.1-8b"), device("h200"), **arguments)  # type: ignore[arg-type]


def test_a_degree_that_does_not_divide_the_heads_is_refused_and_the_possible_ones_are_named() -> None:
    with pytest.raises(InputError, match="possible: 1, 3"):
        check_tensor_parallel(model("smollm2-135m"), 2)


@pytest.mark.parametrize(("field", "value"), [("num_layers", 0), ("vocab_size", -1), ("num_kv_heads", 5)])
def test_an_impossible_model_is_refused_by_field(field: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{field}={value}"):
        replace(model("llama-3.1-8b"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_bytes", 0),
        ("peak_flops", -1.0),
        ("bandwidth_fraction", 1.2),
        ("step_overhead_s", -1e-3),
        ("link_bandwidth", 0.0),
        ("flops_fraction", float("nan")),
    ],
)
def test_an_impossible_device_is_refused_by_field(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field}="):
        replace(device("h200"), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("experts", "a_token"), [(0, 2), (8, 0), (8, 9), (-1, 0)])
def test_a_token_passes_at_least_one_expert_and_no_more_than_there_are(experts: int, a_token: int) -> None:
    with pytest.raises(InputError, match="experts"):
        replace(model("llama-3.1-8b"), num_experts=experts, experts_per_token=a_token)
