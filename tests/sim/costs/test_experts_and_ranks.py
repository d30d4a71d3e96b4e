"""Mixtures of experts and tensor parallelism: made-up profiles, summed by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from schedulers.errors import InputError
from sim.costs import AIConfigurator, Profiled, Roofline
from sim.costs.composition import collectives, num_distinct_experts
from tests.sim.conf import device, model
from tests.sim.costs.batches import batch
from tests.sim.costs.test_profiled import write_profile

MOE = replace(model("qwen3-30b-a3b-instruct-2507"), num_layers=2, num_experts=4, experts_per_token=2)
RTX = device("rtxpro6000")
#: A step of 16 prompt tokens without context: attention takes 10 + 16 us (tests/sim/costs/test_profiled.py).
PROMPT, ATTENTION = batch((16, 0)), 26.0


def write_moe(folder: Path, rows: list[str], header: str = "tokens,activated_experts,time_us") -> Path:
    """A profile as Qwen3's mixtures of experts have it: no MLP rows, per-head norms, moe.csv."""
    write_profile(folder)
    file = folder / "tp1/dense.csv"
    kept = [line for line in file.read_text().splitlines() if not line.startswith(("gate_up", "act_fn", "down"))]
    file.write_text("\n".join([*kept, *(f"qk_norm,{tokens},{tokens}" for tokens in (1, 16, 64, 256))]))
    (folder / "tp1/moe.csv").write_text("\n".join([header, *rows]))
    return folder


def prompt_us(folder: Path) -> float:
    return 1e6 * Profiled(model=MOE, device=RTX, path=str(folder)).step_time(PROMPT)


#: Two layers of five kinds of rows (the norm twice) at 16 us and attention; embedding and final norm; two heads.
WITHOUT_EXPERTS_US = 2 * (6 * 16 + ATTENTION) + 2 * 16 + 2


def test_the_experts_a_batch_is_expected_to_use() -> None:
    assert num_distinct_experts(128, 8, 1) == pytest.approx(8)
    # Two tokens of 2 of 4 experts: of 6 x 6 pairs 6 agree, 24 share one, and 6 none: (6 * 2 + 24 * 3 + 6 * 4) / 36.
    assert num_distinct_experts(4, 2, 2) == pytest.approx(3)
    assert num_distinct_experts(128, 8, 10_000) == pytest.approx(128)


def test_experts_take_the_place_of_the_mlp_at_the_measured_points(tmp_path: Path) -> None:
    used = num_distinct_experts(4, 2, 16)  # 4 but for 1 in 16,384
    rows = [f"{tokens},{experts},{100 * experts + tokens}" for tokens, experts in product((1, 16, 256), (2, 4))]
    assert prompt_us(write_moe(tmp_path / "m", rows)) == pytest.approx(WITHOUT_EXPERTS_US + 2 * (100 * used + 16))


def test_between_the_measured_points_experts_follow_their_number_and_not_the_tokens(tmp_path: Path) -> None:
    """One token uses 2 experts and three use 3.5: a table without a row for three must not say 100 * (2 + ...) / 2."""
    rows = ["1,2,200", *(f"{tokens},{experts},{100 * experts}" for tokens, experts in product((5, 256), (2, 4)))]
    cost = Profiled(model=MOE, device=RTX, path=str(write_moe(tmp_path / "m", rows)))
    step = batch((3, 0))
    # Half way from a row that has 2 experts alone, and is not drawn on from one point, to one that has 100 us each.
    moe = (200 + 100 * 3.5) / 2
    dense = 2 * (6 * 3 + ATTENTION) + 2 * 3 + 2  # attention below the grid is that of its first point
    assert 1e6 * cost.step_time(step) == pytest.approx(dense + 2 * moe)


def test_rows_for_experts_spread_over_devices_are_left_out(tmp_path: Path) -> None:
    rows = ["1,1,4,300", "1,256,4,300", "2,1,4,7", "2,256,4,7"]
    folder = write_moe(tmp_path / "m", rows, "ep,tokens,activated_experts,time_us")
    assert prompt_us(folder) == pytest.approx(WITHOUT_EXPERTS_US + 2 * 300)
    (folder / "tp1/moe.csv").write_text("ep,tokens,activated_experts,time_us\n2,1,4,7\n")
    with pytest.raises(InputError, match=r"moe\.csv has no row with ep=1"):
        prompt_us(folder)


def test_a_mixture_of_experts_without_its_table_is_refused(tmp_path: Path) -> None:
    folder = write_moe(tmp_path / "m", ["1,2,1"])
    (folder / "tp1/moe.csv").unlink()
    with pytest.raises(InputError, match=r"neither moe\.csv nor moe\.csv\.gz"):
        prompt_us(folder)


def test_a_point_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"moe\.csv, line 3: the point tokens=1, activated_experts=2 was given before"):
        prompt_us(write_moe(tmp_path / "m", ["1,2,1", "1,2,1"]))


def test_dense_models_need_no_table_of_experts(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "m")
    assert Profiled(model=model("llama-3.1-8b"), device=RTX, path=str(folder)).step_time(PROMPT) > 0
    with pytest.raises(InputError, match="no row for gate_up_proj, act_fn, down_proj"):
        Profiled(model=model("llama-3.1-8b"), device=RTX, path=str(write_moe(tmp_path / "n", ["1,2,1"])))


def test_two_ranks_have_their_own_tables_and_exchange_over_the_link(tmp_path: Path) -> None:
    """Halved tables stand for the shares of two ranks; what they exchange is summed by hand."""
    folder = write_profile(tmp_path / "m")
    (folder / "tp2").mkdir()
    for file in (folder / "tp1").glob("*.csv"):
        header, *lines = file.read_text().splitlines()
        halved = [f"{line.rpartition(',')[0]},{float(line.rpartition(',')[2]) / 2}" for line in lines]
        (folder / "tp2" / file.name).write_text("\n".join([header, *halved]))
    llama = model("llama-3.1-8b")
    link = replace(RTX, link_bandwidth=10e9, link_latency_s=5e-6)
    one, two = (
        1e6 * Profiled(model=llama, device=link, tensor_parallel=degree, path=str(folder)).step_time(PROMPT)
        for degree in (1, 2)
    )
    # 65 all-reduces (the embedding, and two in each of 32 layers) of 16 tokens x 4,096 x 2 bytes, each two hops and,
    # with two ranks, all its bytes once over the link; one all-gather of half of 128,256 logits.
    all_reduces = 65 * (2 * 5 + 16 * 4096 * 2 / 10e9 * 1e6)
    all_gather = 5 + 128_256 * 2 / 2 / 10e9 * 1e6
    assert two == pytest.approx(one / 2 + all_reduces + all_gather)


def test_four_ranks_send_three_quarters_twice_and_hop_six_times() -> None:
    llama = model("llama-3.1-8b")
    exchange = collectives(llama, replace(RTX, link_bandwidth=10e9, link_latency_s=5e-6), 4)
    assert exchange.step_s == pytest.approx((65 * 6 + 3) * 5e-6)
    assert exchange.token_s == pytest.approx(65 * 1.5 * 4096 * 2 / 10e9)
    assert exchange.sample_s == pytest.approx(0.75 * 128_256 * 2 / 10e9)


@pytest.mark.parametrize(
    ("num_bytes", "measured_us"), [(4096, 12.7), (131_072, 17.4), (1_310_720, 47.5), (20_971_520, 587.1)]
)
def test_the_measured_all_reduces_of_two_cards_are_met(num_bytes: int, measured_us: float) -> None:
    """NCCL over PCIe 5.0, two RTX PRO 6000: hardware.yaml of LLMServingSim 2.0, 2026-09."""
    llama = model("llama-3.1-8b")
    exchange = collectives(llama, RTX, 2)
    tokens = num_bytes / (llama.hidden_size * llama.bytes_per_weight)
    latencies_s = 2 * RTX.link_latency_s
    assert 1e6 * (latencies_s + exchange.token_s * tokens / 65) == pytest.approx(measured_us, rel=0.12)


def test_without_a_link_there_is_no_tensor_parallelism() -> None:
    with pytest.raises(InputError, match="tensor_parallel=2 needs link_bandwidth"):
        collectives(model("llama-3.1-8b"), replace(RTX, link_bandwidth=None), 2)


def test_a_roofline_reads_the_weights_of_the_experts_in_use_only() -> None:
    cost = Roofline(model=model("qwen3-30b-a3b-instruct-2507"), device=RTX)
    few, many = (cost.step_time(batch(decodes=[100] * number)) for number in (1, 128))
    # 8 of 128 experts, of 29 of 30.5 billion parameters: a lone decode reads about a tenth of the weights.
    assert few < 0.12 * many


def test_aiconfigurator_leaves_mixtures_of_experts_to_others(tmp_path: Path) -> None:
    pytest.importorskip("aiconfigurator_core", reason="needs pip install twinserve[profiles]")
    with pytest.raises(InputError, match="is a mixture of experts"):
        AIConfigurator(model=MOE, device=RTX, cache_dir=str(tmp_path))
