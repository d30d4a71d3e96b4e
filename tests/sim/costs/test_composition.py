"""How several prefills are priced as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.composition import as_one_prefill


def _pairs(chunk: float, context: float) -> float:
    return chunk * (context + chunk / 2)


def test_a_single_prefill_is_left_as_it_is() -> None:
    assert as_one_prefill([(512, 300)]) == (512, 300)


@given(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 100_000)), min_size=1, max_size=8))
def test_the_one_prefill_has_as_many_pairs_and_no_more_tokens(prefills: list[tuple[int, int]]) -> None:
    chunk, context = as_one_prefill(prefills)
    assert _pairs(chunk, context) == pytest.approx(sum(_pairs(*prefill) for prefill in prefills))
    assert 0 < chunk <= sum(tokens for tokens, _ in prefills) * (1 + 1e-9)
    assert context >= 0
