"""Distributions of lengths against their closed forms, and settings that cannot be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from experiments.workloads import Fixed, Lognormal, Percentiles
from schedulers.errors import InputError

#: Mid-points of 100,000 equal parts of [0, 1).
EVENLY = (np.arange(100_000) + 0.5) / 100_000


def test_a_lognormal_has_its_median_and_its_mean() -> None:
    tokens = Lognormal(median_tokens=1000, sigma=0.8, max_tokens=10**7).tokens(EVENLY)
    assert np.median(tokens) == pytest.approx(1000, abs=1)
    assert tokens.mean() == pytest.approx(1000 * math.exp(0.8**2 / 2), rel=1e-3)


@pytest.mark.parametrize(("percent", "percentile"), [(99, 4000), (50, 600), (90, 1200)])
def test_a_lognormal_can_be_given_by_its_mean_and_a_percentile(percent: float, percentile: float) -> None:
    tokens = Lognormal.from_mean(700, percent, percentile, max_tokens=10**8).tokens(EVENLY)
    assert tokens.mean() == pytest.approx(700, rel=2e-3)
    assert np.percentile(tokens, percent) == pytest.approx(percentile, rel=2e-3)


@pytest.mark.parametrize(("percent", "percentile"), [(99, 700 * 20), (50, 900), (10, 900)])
def test_a_mean_and_a_percentile_that_no_lognormal_has_are_refused(percent: float, percentile: float) -> None:
    with pytest.raises(InputError, match="no lognormal has a mean of 700 tokens"):
        Lognormal.from_mean(700, percent, percentile, max_tokens=10_000)


def test_lengths_by_percentiles_meet_each_point_and_are_linear_between() -> None:
    tokens = Percentiles({0: 10, 50: 100, 99.9: 1000, 100: 5000}).tokens(np.array([0, 0.25, 0.5, 0.999]))
    assert tokens.tolist() == [10, 55, 100, 1000]


def test_extreme_quantiles_stay_within_the_bounds() -> None:
    extremes = np.array([0.0, 2.0**-53, 1 - 2.0**-53])
    assert Lognormal(100, 50.0, max_tokens=999, min_tokens=2).tokens(extremes).tolist() == [2, 2, 999]
    assert Lognormal(100, 0, max_tokens=999).tokens(extremes).tolist() == [100, 100, 100]


@pytest.mark.parametrize(
    "points",
    [
        {},
        {0: 1},
        {1: 5, 100: 9},
        {0: 5, 99: 9},
        {0: 5, 60: 7, 50: 8, 100: 9},
        {0: 5, 50: 4, 100: 9},
        {0: 0, 100: 9},
        {0: 1, 100: math.nan},
        {0: 1, 100: math.inf},
        {0: "one", 100: 2},
    ],
)
def test_a_table_that_is_no_distribution_is_refused(points: dict[float, float]) -> None:
    with pytest.raises(InputError, match="tokens_at"):
        Percentiles(points)


@pytest.mark.parametrize("num_tokens", [0, -1, 1.5, math.nan])
def test_fixed_lengths_below_one_token_are_refused(num_tokens: int) -> None:
    with pytest.raises(InputError, match="num_tokens"):
        Fixed(num_tokens)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 1, 10), "median_tokens"),
        ((math.nan, 1, 10), "median_tokens"),
        ((5, -1, 10), "sigma"),
        ((5, math.inf, 10), "sigma"),
        ((5, 1, 0), "max_tokens"),
        ((5, 1, 10, 0), "min_tokens"),
        ((50, 1, 10), "between min_tokens=1 and max_tokens=10"),
        ((5, 1, 10, 6), "between min_tokens=6 and max_tokens=10"),
    ],
)
def test_lognormal_settings_out_of_range_are_refused_by_name(arguments: tuple[Any, ...], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Lognormal(*arguments)
