"""Processes of arrivals: bursts that are as long and as dense as asked, at the mean rate that was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.workloads import AllAtOnce, Fixed, OnOff, Synthetic
from schedulers.errors import InputError


def times_s(process: OnOff, num_requests: int, rate: float = 5.0, seed: int = 0) -> np.ndarray:
    workload = Synthetic(rate=rate, num_requests=num_requests, prompt=Fixed(1), output=Fixed(1), arrivals=process)
    return np.array([request.arrival_s for request in workload.requests(seed)])


def test_bursts_have_the_mean_rate_over_time_on_and_off() -> None:
    arrivals = times_s(OnOff(on_s=2, off_s=6), 100_000)
    # 20,000 s are 2,500 cycles; the mean rate varies by about 2.5 % with how much of them is on.
    assert len(arrivals) / arrivals[-1] == pytest.approx(5.0, rel=0.08)


def test_bursts_are_poisson_at_the_rate_while_on_and_silences_have_their_mean() -> None:
    gaps = np.diff(times_s(OnOff(on_s=100, off_s=300), 200_000))
    silences = gaps[gaps > 5]  # 20/s while on: no such gap in a burst
    assert np.median(gaps) == pytest.approx(np.log(2) / 20, rel=0.02)
    # Of exponential silences with mean 300 s, cut at 5 s, the mean is 305 s.
    assert silences.mean() == pytest.approx(305, rel=5 / np.sqrt(len(silences)))
    assert len(silences) == pytest.approx(200_000 / (20 * 100), rel=0.4)


def test_another_rate_leaves_when_bursts_come_and_more_requests_come_after_the_same_first_ones() -> None:
    process = OnOff(on_s=10, off_s=40)
    slow, fast = times_s(process, 2000, rate=4), times_s(process, 8000, rate=16)
    longest = np.argmax(np.diff(slow))
    before, after = slow[longest], slow[longest + 1]
    assert fast[fast <= (before + after) / 2].max() == pytest.approx(before, abs=1.0)
    assert (times_s(process, 3000)[:2000] == times_s(process, 2000)).all()


def test_the_first_state_is_drawn_so_that_some_seeds_start_in_a_silence() -> None:
    first = np.array([times_s(OnOff(on_s=10, off_s=10), 1, rate=100, seed=seed)[0] for seed in range(200)])
    assert (first > 0.2).mean() == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(("field", "value"), [("on_s", 0), ("off_s", -1), ("on_s", "long"), ("off_s", float("inf"))])
def test_a_time_on_or_off_that_is_none_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"workload\.arrivals\.{field}={value}"):
        OnOff(**{"on_s": 1, "off_s": 1, field: value})


def test_all_at_once_is_at_the_start() -> None:
    workload = AllAtOnce(num_requests=9, prompt=Fixed(5), output=Fixed(2))
    assert {request.arrival_s for request in workload.requests(3)} == {0.0}
    assert workload.describe() == "9 requests at once; prompts: 5 tokens; outputs: 2 tokens"
