"""Prices from aiconfigurator's tables, against aiconfigurator itself and against the other models."""

from __future__ import annotations

import importlib.metadata
import random
import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.costs import AIConfigurator, Auto, Profiled, Roofline
from tests.shared import shared
from tests.sim.conf import device, model
from tests.sim.costs.batches import GROWING, batch

pytest.importorskip("aiconfigurator_core", reason="needs pip install twinserve[profiles]")

LLAMA = model("llama-3.1-8b")
H200 = device("h200")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cost(cache: Path) -> AIConfigurator:
    return AIConfigurator(model=LLAMA, device=H200, cache_dir=str(cache))


@pytest.mark.parametrize("steps", GROWING.values(), ids=GROWING)
def test_more_tokens_or_context_cost_no_less_but_for_noise(cost: AIConfigurator, steps: list[BatchShape]) -> None:
    times = [cost.step_time(step) for step in steps if step.num_tokens]
    assert all(later > 0.98 * earlier for earlier, later in pairwise(times))
    assert times[-1] > times[0]


def test_a_decode_step_is_what_aiconfigurator_says_for_it(cost: AIConfigurator) -> None:
    from aiconfigurator_core.sdk import EngineHandle

    engine = EngineHandle.compile("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", "vllm", tp_size=1)
    for number, context in ((1, 1024), (32, 512), (64, 4096), (256, 2048)):
        kernels_s = cost.step_time(batch(decodes=[context] * number)) - H200.step_overhead_s
        assert 1e3 * kernels_s == pytest.approx(
            sum(op[1] for op in engine.decode_step_per_op(number, context, 2)), rel=0.03
        )


def test_interpolating_is_off_by_little_from_asking_for_every_step(cost: AIConfigurator) -> None:
    from aiconfigurator_core.sdk import EngineHandle

    engine = EngineHandle.compile("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", "vllm", tp_size=1)

    def asked_ms(chunk: int, context: int, decodes: int, decode_context: int) -> float:
        def prefill(tokens: int, cached: int) -> Any:
            return engine.run_static_per_op(batch_size=1, isl=tokens + cached, prefix=cached, osl=1, mode="static_ctx")[
                0
            ]

        parts = [op for op in prefill(chunk + decodes, 0) if op[0] not in ("context_attention", "context_logits_gemm")]
        parts += [op for op in prefill(chunk, context) if op[0] == "context_attention"]
        parts += [op for op in engine.decode_step_per_op(decodes, decode_context, 2) if op[0] == "generation_attention"]
        parts += [op for op in engine.decode_step_per_op(decodes + 1, 1, 2) if op[0] == "generation_logits_gemm"]
        return 1e3 * H200.step_overhead_s + sum(op[1] for op in parts)

    random_ = random.Random(1)
    errors = []
    for _ in range(3000):
        chunk, context, decodes, decode_context = (round(2 ** random_.uniform(*span)) for span in (
            (4, 12), (4, 14), (0, 8), (4, 14)))  # fmt: skip
        step = batch((chunk, context), decodes=[decode_context] * decodes)
        errors.append(abs(1e3 * cost.step_time(step) / asked_ms(chunk, context, decodes, decode_context) - 1))
    assert statistics.mean(errors) < 0.001
    assert statistics.quantiles(errors, n=100)[98] < 0.01
    assert max(errors) < 0.03


@pytest.mark.parametrize(
    "step",
    [
        batch((512, 0)),
        batch((2048, 0)),
        batch((512, 4096)),
        batch(decodes=[1000]),
        batch(decodes=[1000] * 64),
        batch((512, 0), decodes=[1000] * 64),
        batch((300, 0), (212, 1000), decodes=[2000] * 40),
    ],
)
def test_the_roofline_agrees_within_a_quarter(cost: AIConfigurator, step: BatchShape) -> None:
    """0.85 to 0.90 of aiconfigurator's price: it leaves out norms, launches, and that attention attains less."""
    ratio = Roofline(model=LLAMA, device=H200).step_time(step) / cost.step_time(step)
    assert 0.75 < ratio < 1


def test_the_measured_profile_of_another_hand_agrees_within_a_tenth(cache: Path) -> None:
    gpu = device("rtxpro6000")
    folder = shared("data/vllm_runs/profiles/RTXPRO6000/Llama-3.1-8B")
    theirs = Profiled(model=LLAMA, device=gpu, path=str(folder))
    ours = AIConfigurator(model=LLAMA, device=gpu, cache_dir=str(cache))
    for step in (batch((512, 0)), batch(decodes=[1000] * 64), batch((300, 0), (212, 1000), decodes=[2000] * 40)):
        assert ours.step_time(step) == pytest.approx(theirs.step_time(step), rel=0.1)


def test_a_second_construction_reads_what_the_first_one_kept(cache: Path, cost: AIConfigurator) -> None:
    kept = {file: file.stat().st_mtime_ns for file in cache.glob("*h200*tp1*.json")}
    assert len(kept) == 1
    again = AIConfigurator(model=LLAMA, device=H200, cache_dir=str(cache))
    step = batch((300, 77), decodes=[123, 4567])
    assert again.step_time(step) == cost.step_time(step)
    assert {file: file.stat().st_mtime_ns for file in cache.iterdir() if file in kept} == kept


@pytest.mark.parametrize("content", ["", "{}", "[1", '{"linear": [1.0]}', "[]"])
def test_a_damaged_cache_is_built_anew(tmp_path: Path, cost: AIConfigurator, content: str) -> None:
    AIConfigurator(model=LLAMA, device=H200, cache_dir=str(tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    step = batch((300, 77), decodes=[123, 4567])
    assert AIConfigurator(model=LLAMA, device=H200, cache_dir=str(tmp_path)).step_time(step) == cost.step_time(step)
    assert len(file.read_text()) > 1000


def test_where_nothing_can_be_kept_it_works_all_the_same(tmp_path: Path, cost: AIConfigurator) -> None:
    (tmp_path / "file").touch()
    step = batch((300, 77), decodes=[123, 4567])
    unkept = AIConfigurator(model=LLAMA, device=H200, cache_dir=str(tmp_path / "file"))
    assert unkept.step_time(step) == cost.step_time(step)


def test_steps_beyond_the_tables_are_priced_on_and_reported_with_how_far(cache: Path) -> None:
    cost = AIConfigurator(model=LLAMA, device=H200, cache_dir=str(cache))
    assert cost.step_time(batch((32768, 0))) > cost.step_time(batch((16384, 0)))
    assert cost.extrapolations == {"tokens": (1, 32768, 16384), "prefill_chunk": (1, 32768, 16384)}
    assert "tokens, which end at 16,384; the largest had 32,768, 2.0 times" in cost.warnings()[0]


def test_a_device_without_tables_is_refused_and_auto_falls_back_to_the_roofline_and_says_why() -> None:
    gpu = device("rtx4090")
    with pytest.raises(InputError, match="not among the measured GPUs"):
        AIConfigurator(model=LLAMA, device=gpu)
    auto = Auto(model=LLAMA, device=gpu)
    step = batch((300, 0), decodes=[100])
    assert auto.step_time(step) == Roofline(model=LLAMA, device=gpu).step_time(step)
    assert "roofline" in auto.describe()
    assert "not among the measured GPUs" in auto.describe()


def test_a_shape_without_tables_is_refused_with_aiconfigurators_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no figures for smollm2-135m on h200_sxm.*attention data missing"):
        AIConfigurator(model=model("smollm2-135m"), device=H200, cache_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["bytes_per_weight", "bytes_per_kv_element"])
def test_other_than_bfloat16_is_refused(field: str) -> None:
    with pytest.raises(InputError, match="bfloat16"):
        AIConfigurator(model=replace(LLAMA, **{field: 1}), device=H200)  # type: ignore[arg-type]


def test_auto_prices_with_aiconfigurator_where_it_can(
    cache: Path, cost: AIConfigurator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    auto = Auto(model=LLAMA, device=H200)
    step = batch((300, 77), decodes=[123, 4567])
    assert auto.step_time(step) == cost.step_time(step)
    assert auto.describe().startswith("aiconfigurator-core ")
    assert auto.warnings() == []


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("sim.costs.aiconfigurator.version", absent)
    with pytest.raises(InputError, match=r"pip install twinserve\[profiles\]"):
        AIConfigurator(model=LLAMA, device=H200)
    assert "pip install" in Auto(model=LLAMA, device=H200).describe()


def test_a_degree_that_nobody_can_price_is_refused_by_auto_too() -> None:
    with pytest.raises(InputError, match="tensor_parallel=3"):
        Auto(model=LLAMA, device=replace(H200, link_bandwidth=None), tensor_parallel=3)
