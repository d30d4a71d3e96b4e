"""Prices from operations and bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.costs import Roofline
from tests.sim.conf import device, model
from tests.sim.costs.batches import GROWING, batch

LLAMA = model("llama-3.1-8b")
H200 = device("h200")


def roofline(**changes: float | None) -> Roofline:
    return Roofline(model=LLAMA, device=replace(H200, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", GROWING.values(), ids=GROWING)
def test_more_tokens_or_context_never_cost_less(steps: list[BatchShape]) -> None:
    times = [roofline().step_time(step) for step in steps]
    assert times == sorted(times)


def test_one_decode_takes_the_time_to_read_the_weights() -> None:
    read_s = (LLAMA.weight_bytes - 2 * LLAMA.num_lm_head_parameters) / (H200.memory_bandwidth * H200.bandwidth_fraction)
    assert roofline(step_overhead_s=0).step_time(batch(decodes=[1])) == pytest.approx(read_s, rel=1e-3)


def test_a_long_prompt_takes_the_time_of_its_operations() -> None:
    tokens = 4096
    linear = 2 * tokens * LLAMA.num_layers * LLAMA.num_layer_parameters
    attention = 4 * LLAMA.num_layers * LLAMA.attention_size * tokens * (tokens + 1) / 2
    compute_s = (linear + attention) / (H200.peak_flops * H200.flops_fraction)
    step = BatchShape([(tokens, 0)], [], num_sampled=0)
    assert roofline(step_overhead_s=0).step_time(step) == pytest.approx(compute_s)


def test_rows_that_sample_nothing_do_not_pay_for_the_output_projection() -> None:
    sampling, silent = BatchShape([(512, 0)], [], 1), BatchShape([(512, 0)], [], 0)
    assert roofline().step_time(silent) < roofline().step_time(sampling)


def test_the_overhead_of_the_device_is_in_every_step() -> None:
    step = batch((512, 0), decodes=[100, 1000])
    added = roofline(step_overhead_s=5e-3).step_time(step) - roofline(step_overhead_s=0).step_time(step)
    assert added == pytest.approx(5e-3)


def test_two_devices_are_faster_than_one_and_slower_than_half() -> None:
    step = batch((2048, 0), decodes=[1000] * 32)
    one, two = (
        Roofline(model=LLAMA, device=replace(H200, step_overhead_s=0), tensor_parallel=degree).step_time(step)
        for degree in (1, 2)
    )
    assert one / 2 < two < one


def test_tensor_parallelism_without_a_known_link_is_refused() -> None:
    with pytest.raises(InputError, match="link_bandwidth"):
        Roofline(model=LLAMA, device=replace(H200, link_bandwidth=None), tensor_parallel=2)


def test_a_step_leaves_its_batch_unchanged_and_warns_of_nothing() -> None:
    cost = roofline()
    step = batch((512, 100), decodes=[10, 20])
    cost.step_time(step)
    assert step == batch((512, 100), decodes=[10, 20])
    assert cost.warnings() == []
    assert "llama-3.1-8b on h200" in cost.describe()
