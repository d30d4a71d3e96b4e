"""Percentiles of more values than are kept are those of all values, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.distribution import Distribution, Floats, distribution


def in_pieces(values: Floats, pieces: int, most_kept: int) -> Distribution:
    found = Distribution(most_kept)
    while not found.is_known:
        for piece in np.array_split(values, pieces):
            found.add(piece)
        found.end_pass()
    return found


FINITE = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1.0, 5e-324, float("nan")])


@settings(max_examples=60, deadline=None)
@given(st.lists(FINITE, max_size=80), st.integers(1, 5), st.integers(0, 20))
def test_values_in_pieces_have_the_distribution_of_all(given_values: list[float], pieces: int, kept: int) -> None:
    values = np.array([1.0, *given_values])
    assert in_pieces(values, pieces, kept).figures() == pytest.approx(distribution(values), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("draw", ["exponential", "normal"])
def test_a_hundred_thousand_values_need_four_passes_and_no_memory_of_their_own(draw: str) -> None:
    values = getattr(np.random.default_rng(0), draw)(size=100_000)
    found = in_pieces(values, 9, 1000)
    assert found.figures() == pytest.approx(distribution(values), rel=1e-12)
    assert found._kept is None
    assert sum(counts.nbytes for counts in found._counts.values()) <= 8 * 8 * 65536


def test_few_values_are_known_after_one_pass() -> None:
    found = Distribution()
    found.add(np.array([3.0, np.nan, 1.0]))
    assert not found.is_known
    found.end_pass()
    assert found.is_known
    assert found.figures() == distribution(np.array([1.0, 3.0]))


def test_no_value_at_all_has_a_count_and_nothing_else() -> None:
    found = in_pieces(np.full(3, np.nan), 2, 1)
    assert found.figures() == {"count": 0, **dict.fromkeys(("mean", "p50", "p90", "p95", "p99", "max"))}
