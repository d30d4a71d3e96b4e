"""The search for a capacity, on a made-up engine whose capacity is known."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from experiments.capacity_search import Bounds, Criterion, Evaluation, Interval, Search, Verdict

TTFT = Criterion("TTFT P99", ("ttft_s", "p99"), 1.0, is_latency=True)
SHARE = Criterion("requests within SLO", ("goodput", "share"), 0.9, is_latency=False)
BOUNDS = Bounds(lowest=0.01, highest=10_000, precision=0.05, min_seeds=3, max_seeds=12)


def summary(ttft_s: float | None = 0.1, share: float | None = 1.0, completed: int = 10) -> dict[str, Any]:
    return {"completed": completed, "ttft_s": {"p99": ttft_s}, "goodput": {"share": share}}


def searched(capacity: float, noise: float, seed: int = 0, first_rate: float = 5.0, bounds: Bounds = BOUNDS) -> Search:
    """A search on an engine whose P99 grows with the fourth power of the rate, and is 1 s at its capacity."""
    rng = random.Random(seed)
    search = Search([TTFT], bounds, first_rate)
    while wanted := search.wanted:
        search.learn([summary((rate / capacity) ** 4 * math.exp(rng.gauss(0, noise))) for rate, _ in wanted])
    return search


@pytest.mark.parametrize("capacity", [0.05, 0.73, 17.0, 900.0])
def test_without_noise_the_capacity_is_found_to_the_precision_asked_for(capacity: float) -> None:
    search = searched(capacity, noise=0.0)
    assert search.capacity is not None
    assert search.capacity <= capacity <= 1.06 * search.capacity
    low, high = search.interval
    assert low == search.capacity
    assert high is not None
    assert capacity < high <= 1.06 * search.capacity
    assert all(evaluation.num_seeds == 3 for evaluation in search.evaluations.values())


def test_with_noise_the_interval_holds_the_capacity_in_nearly_all_searches_and_the_estimate_is_near() -> None:
    searches = [searched(17.0, noise=0.5, seed=seed) for seed in range(60)]
    held = [low <= 17.0 <= high for low, high in (search.interval for search in searches) if low and high]
    assert len(held) == 60
    assert sum(held) >= 54
    estimates = sorted(search.capacity or 0.0 for search in searches)
    assert 15.3 < estimates[30] < 18.7
    assert 13 < estimates[3] < estimates[-4] < 22


def test_more_seeds_are_asked_for_only_where_the_interval_holds_the_target_and_up_to_the_limit() -> None:
    search = searched(17.0, noise=0.5, seed=1)
    for evaluation in search.evaluations.values():
        interval = evaluation.intervals["TTFT P99"]
        if evaluation.verdict is Verdict.UNDECIDED:
            assert evaluation.num_seeds == 12
            assert interval.low <= 1.0 <= interval.high
        else:
            assert not interval.low < 1.0 < interval.high
    assert any(evaluation.num_seeds > 3 for evaluation in search.evaluations.values())


def test_a_search_stays_within_its_bounds_and_says_when_they_hold_no_answer() -> None:
    low = searched(0.001, noise=0.0)
    assert low.capacity is None
    assert low.interval == (None, 0.01)
    high = searched(1e6, noise=0.0)
    assert high.capacity == 10_000
    assert high.interval == (10_000, None)
    assert max(high.evaluations) == 10_000


def test_rates_have_three_digits_so_that_searches_share_points() -> None:
    search = searched(17.0, noise=0.3, first_rate=5.53)
    assert all(rate == float(f"{rate:.3g}") for rate in search.evaluations)


def test_the_interval_of_latencies_is_students_t_of_their_logarithms() -> None:
    interval = Interval.of(TTFT, [1.0, math.e, math.e**2])
    assert interval.mean == pytest.approx(math.e)
    assert interval.high / interval.mean == pytest.approx(math.exp(4.303 / math.sqrt(3)), rel=1e-3)
    assert interval.low == pytest.approx(interval.mean**2 / interval.high)


def test_a_rate_is_missed_when_any_criterion_is_and_met_when_all_are() -> None:
    good, slow = [summary()] * 3, [summary(ttft_s=5.0)] * 3
    assert Evaluation.of(1.0, [TTFT, SHARE], good).verdict is Verdict.MET
    assert Evaluation.of(1.0, [TTFT, SHARE], slow).verdict is Verdict.MISSED
    split = [summary(share=0.5), summary(share=1.0), summary(share=1.0)]
    undecided = Evaluation.of(1.0, [TTFT, SHARE], split)
    assert (undecided.verdict, undecided.is_good) == (Verdict.UNDECIDED, False)
    assert Evaluation.of(1.0, [SHARE], split[1:]).verdict is Verdict.MET


def test_runs_in_which_nobody_was_served_miss_and_a_figure_that_no_run_has_decides_nothing() -> None:
    nobody = [summary(None, None, completed=0)] * 3
    assert Evaluation.of(1.0, [TTFT, SHARE], nobody).verdict is Verdict.MISSED
    without = Evaluation.of(1.0, [TTFT], [summary(ttft_s=None)] * 3)
    assert without.intervals == {}


def test_a_search_that_is_given_up_wants_nothing_more() -> None:
    search = Search([TTFT], BOUNDS, 1.0)
    assert search.wanted == [(1.0, 0), (1.0, 1), (1.0, 2)]
    search.give_up("the policy failed")
    assert search.wanted == []
    assert search.capacity is None
