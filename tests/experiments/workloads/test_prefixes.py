"""Prompts that begin alike, and mixtures of workloads: what is shared, how often, and what is not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from experiments.workloads import ClosedLoop, Fixed, Lognormal, Mixture, Part, Plan, Sessions, SharedPrefixes, Synthetic
from schedulers.errors import InputError
from schedulers.request import SLO

LENGTHS = Lognormal(200, 0.8, max_tokens=2000)
PREFIXES = SharedPrefixes(num_prefixes=10, tokens=Lognormal(500, 0.5, max_tokens=2000), exponent=1.0)
PLAIN = Synthetic(rate=4, num_requests=5000, prompt=LENGTHS, output=Fixed(9))
SHARED = replace(PLAIN, prefixes=PREFIXES)


def test_the_kth_most_popular_prefix_is_chosen_in_proportion_to_its_rank() -> None:
    chosen = Counter(request.hash_ids for request in SHARED.requests(0))
    total = sum(1 / k for k in range(1, 11))
    for rank in range(10):
        assert chosen[(rank,)] / 5000 == pytest.approx(1 / (rank + 1) / total, abs=0.02)
    alike = Counter(r.hash_ids for r in replace(SHARED, prefixes=replace(PREFIXES, exponent=0)).requests(0))
    assert min(alike.values()) / 5000 == pytest.approx(0.1, abs=0.02)


def test_a_prefix_comes_before_the_prompt_and_has_one_length() -> None:
    lengths: dict[tuple[int, ...], set[int]] = {}
    for plain, request in zip(PLAIN.requests(0), SHARED.requests(0), strict=True):
        own = request.num_prompt_tokens - request.trace_block_tokens
        assert own == plain.num_prompt_tokens
        assert request.arrival_s == plain.arrival_s
        lengths.setdefault(request.hash_ids, set()).add(request.trace_block_tokens)
        assert len(request.block_hashes(16)) == request.trace_block_tokens // 16
    assert all(len(each) == 1 for each in lengths.values())
    assert len(set(map(min, lengths.values()))) > 5


@pytest.mark.parametrize(
    ("field", "value"), [("num_prefixes", 0), ("tokens", 300), ("exponent", -1), ("exponent", "zipf")]
)
def test_a_setting_of_prefixes_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"workload\.prefixes\.{field}={value}"):
        replace(PREFIXES, **{field: value})


CHAT = Sessions(rate=1, num_sessions=500, turns=Fixed(3), prompt=LENGTHS, output=Fixed(9), prefixes=PREFIXES)
JOB = replace(SHARED, num_requests=2000)
MIXED = Mixture(
    rate=10, num_requests=1000, parts={"chat": Part(CHAT, 1), "job": Part(JOB, 3, priority=7, client_id="job")}
)


def test_arrivals_are_drawn_from_the_parts_by_weight_and_followers_come_with_them() -> None:
    requests = MIXED.requests(0)
    opening = list(Plan.of(requests).opening)
    assert len(opening) == 1000
    chat = [request for request in opening if request.class_name == "chat"]
    assert len(chat) / 1000 == pytest.approx(0.25, abs=0.05)
    assert len(requests) == 1000 + 2 * len(chat)
    assert 1000 / opening[-1].arrival_s == pytest.approx(10, rel=0.1)
    assert len({request.request_id for request in requests}) == len(requests)


def test_what_is_given_for_a_part_takes_the_place_of_what_its_requests_say() -> None:
    slo = SLO(ttft_s=1.0)
    parts = {"a": Part(JOB, priority=3, client_id="x", slo=slo), "b": Part(JOB)}
    requests = replace(MIXED, parts=parts).requests(0)
    kinds = {(request.class_name, request.priority, request.client_id, request.slo) for request in requests}
    assert kinds == {("a", 3, "x", slo), ("b", 0, "", None)}


def test_parts_share_nothing_and_draw_apart() -> None:
    requests = replace(MIXED, parts={"a": Part(SHARED), "b": Part(SHARED)}).requests(0)
    of = {name: [request for request in requests if request.class_name == name] for name in "ab"}
    names = {name: {h for request in of[name] for h in request.block_hashes(16)} for name in "ab"}
    assert not names["a"] & names["b"]
    assert [request.num_prompt_tokens for request in of["a"][:9]] != [r.num_prompt_tokens for r in of["b"][:9]]
    turns = replace(MIXED, num_requests=500, parts={"a": Part(CHAT), "b": Part(CHAT)}).requests(0)
    assert {request.content_id.partition(".")[0] for request in turns} == {"a", "b"}


def test_users_of_a_closed_loop_can_be_a_part() -> None:
    users = ClosedLoop(num_users=5, num_requests=50, prompt=Fixed(9), output=Fixed(9))
    mixed = Mixture(rate=10, num_requests=5, parts={"users": Part(users)}).requests(0)
    assert [request.num_prompt_tokens for request in mixed] == [9] * 50
    assert len(list(Plan.of(mixed).opening)) == 5


def test_the_same_seed_gives_the_same_mixture() -> None:
    assert MIXED.requests(4) == MIXED.requests(4) != MIXED.requests(5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parts": {}}, r"workload\.parts=\{\}: it must hold at least one"),
        ({"parts": {"a": 5}}, r"workload\.parts\.a=5: .*experiments\.workloads\.Part"),
        ({"parts": {"a": Part(5)}}, r"workload\.parts\.a\.workload=5"),  # type: ignore[arg-type]
        ({"parts": {"a": Part(JOB, -1)}}, r"workload\.parts\.a\.weight=-1"),
        ({"parts": {"a": Part(JOB, 0)}}, r"every weight is 0"),
        ({"rate": 0}, r"workload\.rate=0"),
        ({"num_requests": 0}, r"workload\.num_requests=0"),
        ({"too_long": "cut"}, r"workload\.too_long=cut"),
        ({"arrivals": 3}, r"workload\.arrivals=3"),
    ],
)
def test_a_mixture_that_is_none_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(MIXED, **settings)


def test_a_part_that_runs_out_is_named_with_what_it_has() -> None:
    with pytest.raises(InputError, match=r"workload\.parts\.job: [\d,]+ of the 9,000 arrivals.* it has 2,000"):
        replace(MIXED, num_requests=9000, parts={"chat": Part(CHAT, 0), "job": Part(JOB)}).requests(0)


def test_one_line_says_what_is_mixed() -> None:
    assert MIXED.describe().startswith("1,000 arrivals at 10/s, Poisson arrivals; chat 25%: 500 sessions at 1/s")
    assert "; job 75%: 2,000 requests at 4/s" in MIXED.describe()
