"""What steps take longer because the device had nothing to do before them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from schedulers import InputError
from sim.costs.after_idle import AfterIdle
from tests.sim.costs.batches import batch
from tests.sim.costs.test_profiled import profiled, write_profile

TABLE = "tokens,idle_ms,time_us\n16,50,100\n16,200,400\n64,50,500\n64,200,2000\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "after_idle.csv").write_text(TABLE)
    return tmp_path


@pytest.mark.parametrize(
    ("tokens", "idle_s", "expected_us"),
    [
        (16, 0.05, 100),
        (64, 0.2, 2000),
        (40, 0.2, 1200),  # halfway between 16 and 64 tokens
        (64, 0.125, 1250),  # halfway between 50 and 200 ms
        (64, 0.025, 250),  # halfway between no idling, which costs nothing, and 50 ms
        (64, 0.0, 0),
        (1, 0.2, 400),
        (4096, 0.2, 2000),
        (64, math.inf, 2000),
    ],
)
def test_the_extra_time_is_interpolated_within_the_table_and_that_of_its_ends_beyond(
    files: Path, tokens: int, idle_s: float, expected_us: float
) -> None:
    assert AfterIdle(files).time_us(tokens, idle_s) == pytest.approx(expected_us)


def test_without_a_table_idling_costs_nothing(tmp_path: Path) -> None:
    assert AfterIdle(tmp_path).time_us(64, 10.0) == 0.0


def test_a_profile_with_the_table_prices_steps_after_idling_higher_and_warns_of_nothing(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "RTX4090" / "Llama-3.1-8B")
    (folder / "tp1" / "after_idle.csv").write_text(TABLE)
    cost = profiled(folder)
    step = batch((24, 0), decodes=[16] * 2)
    assert 1e6 * (cost.step_time(step, 0.2) - cost.step_time(step)) == pytest.approx(400 + 1600 * 10 / 48)
    assert cost.step_time(step, math.inf) == cost.step_time(step, 0.2)
    assert cost.warnings() == []


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("128,50,900", r"the grid has a hole: 1 of 9 points are missing: tokens=128, idle_ms=200$"),
        ("16,50,900", r"line 6: the point tokens=16, idle_ms=50 was given before"),
        ("16,fifty,900", r"line 6: 'fifty' is not a number of 0 or more"),
    ],
)
def test_a_broken_table_is_refused_and_the_row_named(files: Path, row: str, expected: str) -> None:
    (files / "after_idle.csv").write_text(f"{TABLE}{row}\n")
    with pytest.raises(InputError, match=rf"after_idle\.csv.*{expected}"):
        AfterIdle(files)
