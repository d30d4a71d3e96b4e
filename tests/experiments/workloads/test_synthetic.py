"""Synthetic workloads: what the seed decides, what the settings change, and what they leave alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.workloads import Fixed, Gamma, Lognormal, Percentiles, RequestClass, Synthetic
from schedulers.errors import InputError
from schedulers.request import SLO

CHAT = Synthetic(
    rate=4.0,
    num_requests=2000,
    prompt=Lognormal(median_tokens=500, sigma=1.0, max_tokens=8000),
    output=Lognormal(median_tokens=100, sigma=0.7, max_tokens=2000),
)
URGENT = RequestClass(share=0.25, priority=-1, client_id="people", slo=SLO(ttft_s=0.5), output=Fixed(7))
BATCH = RequestClass(share=0.75, priority=5, client_id="job")


def arrivals(workload: Synthetic, seed: int = 0) -> np.ndarray:
    return np.array([request.arrival_s for request in workload.requests(seed)])


def lengths(workload: Synthetic, seed: int = 0) -> list[tuple[int, int]]:
    return [(request.num_prompt_tokens, request.num_output_tokens) for request in workload.requests(seed)]


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert CHAT.requests(3) == CHAT.requests(3)
    assert CHAT.requests(3) != CHAT.requests(4)


def test_a_seed_gives_these_requests_on_every_machine() -> None:
    first = CHAT.requests(0)[:3]
    assert [(r.request_id, r.num_prompt_tokens, r.num_output_tokens) for r in first] == [
        ("r00000", 792, 200),
        ("r00001", 249, 38),
        ("r00002", 664, 123),
    ]
    assert [round(r.arrival_s, 9) for r in first] == [0.823381948, 1.014164632, 1.327256413]


def test_another_rate_scales_the_same_arrivals_and_changes_nothing_else() -> None:
    faster = replace(CHAT, rate=8.0)
    np.testing.assert_allclose(arrivals(faster) * 2, arrivals(CHAT))
    assert lengths(faster) == lengths(CHAT)


def test_other_arrivals_leave_the_lengths_and_other_lengths_leave_the_arrivals() -> None:
    assert lengths(replace(CHAT, arrivals=Gamma(cv=3))) == lengths(CHAT)
    assert (arrivals(replace(CHAT, prompt=Fixed(10))) == arrivals(CHAT)).all()
    assert [o for _, o in lengths(replace(CHAT, prompt=Fixed(10)))] == [o for _, o in lengths(CHAT)]


def test_classes_leave_the_arrivals_and_the_lengths_they_do_not_set() -> None:
    classed = replace(CHAT, classes={"urgent": URGENT, "batch": BATCH})
    assert (arrivals(classed) == arrivals(CHAT)).all()
    assert [p for p, _ in lengths(classed)] == [p for p, _ in lengths(CHAT)]


def test_more_requests_come_after_the_same_first_ones() -> None:
    assert replace(CHAT, num_requests=2500).requests(0)[:2000] == CHAT.requests(0)


def test_requests_come_by_arrival_with_unique_ids_and_at_least_one_token() -> None:
    requests = replace(CHAT, prompt=Lognormal(1, 3.0, max_tokens=50)).requests(1)
    assert [r.arrival_s for r in requests] == sorted(r.arrival_s for r in requests)
    assert len({r.request_id for r in requests}) == len(requests)
    assert min(r.num_prompt_tokens for r in requests) == 1
    assert max(r.num_prompt_tokens for r in requests) == 50


@pytest.mark.parametrize(("process", "cv"), [(CHAT.arrivals, 1.0), (Gamma(cv=3), 3.0), (Gamma(cv=0.2), 0.2)])
def test_arrivals_have_the_asked_rate_and_burstiness(process: Gamma, cv: float) -> None:
    gaps = np.diff(arrivals(replace(CHAT, arrivals=process, num_requests=50_000)))
    # Four standard errors of the mean of 50,000 gaps.
    assert gaps.mean() == pytest.approx(1 / CHAT.rate, rel=4 * cv / math.sqrt(50_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_each_class_has_its_share_and_its_own_settings() -> None:
    requests = replace(CHAT, num_requests=20_000, classes={"urgent": URGENT, "batch": BATCH}).requests(0)
    urgent = [r for r in requests if r.class_name == "urgent"]
    assert len(urgent) / len(requests) == pytest.approx(0.25, abs=0.015)
    assert {(r.priority, r.client_id, r.slo, r.num_output_tokens) for r in urgent} == {(-1, "people", SLO(0.5), 7)}
    assert {(r.priority, r.client_id, r.slo) for r in requests if r.class_name == "batch"} == {(5, "job", None)}


def test_shares_that_do_not_add_up_to_1_are_refused_with_the_sum() -> None:
    with pytest.raises(InputError, match=r"workload\.classes: .* not 0\.5 \(urgent 0\.25, batch 0\.25\)"):
        replace(CHAT, classes={"urgent": URGENT, "batch": replace(BATCH, share=0.25)})


def test_thirds_add_up_to_1() -> None:
    third = RequestClass(share=1 / 3)
    assert len(replace(CHAT, classes={"a": third, "b": third, "c": third}).requests(0)) == 2000


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, "fast", True])
def test_a_rate_that_is_none_is_refused_by_name(rate: float) -> None:
    with pytest.raises(InputError, match=r"workload\.rate="):
        replace(CHAT, rate=rate)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_requests", 0),
        ("num_requests", -3),
        ("num_requests", 10.5),
        ("num_requests", True),
        ("max_tokens", 0),
        ("too_long", "cut"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"workload\.{field}={value}"):
        replace(CHAT, **{field: value})


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(InputError, match="seed="):
        CHAT.requests(seed)


@pytest.mark.parametrize("cv", [0, -1, math.nan, 1e-200, 1e200])
def test_a_burstiness_out_of_range_is_refused(cv: float) -> None:
    with pytest.raises(InputError, match=r"workload\.arrivals\.cv="):
        Gamma(cv)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**64),
    rate=st.floats(1e-3, 1e4),
    cv=st.floats(1e-3, 1e3),
    sigma=st.floats(0, 50),
    num_requests=st.integers(1, 50),
)
def test_whatever_the_settings_requests_are_sound(
    seed: int, rate: float, cv: float, sigma: float, num_requests: int
) -> None:
    workload = Synthetic(
        rate=rate,
        num_requests=num_requests,
        prompt=Lognormal(100, sigma, max_tokens=4000, min_tokens=3),
        output=Percentiles({0: 1, 100: 9}),
        arrivals=Gamma(cv),
    )
    requests = workload.requests(seed)
    assert len(requests) == num_requests
    assert all(3 <= r.num_prompt_tokens <= 4000 and 1 <= r.num_output_tokens <= 9 for r in requests)
    assert all(math.isfinite(r.arrival_s) and r.arrival_s >= 0 for r in requests)


def test_one_line_says_what_the_workload_is() -> None:
    workload = replace(CHAT, classes={"urgent": URGENT, "batch": BATCH}, arrivals=Gamma(3), output=Fixed(7))
    assert workload.describe() == (
        "2,000 requests at 4/s, gamma arrivals (cv 3); prompts: lognormal (median 500, sigma 1); outputs: 7 tokens; "
        "classes: urgent 25%, batch 75%"
    )
