"""Requests that wait for others: users of a closed loop, turns of a session, and what becomes of them when some go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from experiments.workloads import (
    ClosedLoop,
    Fixed,
    Lognormal,
    Plan,
    RequestClass,
    Sessions,
    SharedPrefixes,
    WorkloadRequest,
    check_lengths,
)
from schedulers.errors import InputError

USERS = ClosedLoop(num_users=3, think_s=2.0, num_requests=10, prompt=Fixed(100), output=Fixed(10))
CHAT = Sessions(
    rate=2.0,
    num_sessions=50,
    think_s=10.0,
    turns=Lognormal(3, 0.8, max_tokens=9),
    prompt=Lognormal(50, 1.0, max_tokens=500),
    output=Lognormal(80, 0.8, max_tokens=400),
    prefixes=SharedPrefixes(num_prefixes=2, tokens=Fixed(64)),
)


def sessions(workload: Sessions, seed: int = 0) -> dict[str, list[WorkloadRequest]]:
    turns: dict[str, list[WorkloadRequest]] = {}
    for request in workload.requests(seed):
        turns.setdefault(request.session_id, []).append(request)
    return turns


def test_requests_are_dealt_to_the_users_in_turn_and_each_follows_its_users_last() -> None:
    requests = {request.request_id: request for request in USERS.requests(0)}
    assert [request.follows for request in requests.values()][:3] == ["", "", ""]
    for number in range(3, 10):
        assert requests[f"r{number:05d}"].follows == f"r{number - 3:05d}"


def test_users_think_before_each_request_also_the_first() -> None:
    requests = ClosedLoop(num_users=500, think_s=2.0, num_requests=5000, prompt=Fixed(9), output=Fixed(9)).requests(0)
    first = [request.arrival_s for request in requests if not request.follows]
    assert first == sorted(first)
    assert np.mean(first) == pytest.approx(2.0, rel=0.2)
    assert np.mean([request.think_s for request in requests if request.follows]) == pytest.approx(2.0, rel=0.07)
    assert {request.arrival_s for request in requests if request.follows} == {0.0}


def test_more_users_than_requests_ask_once_each_or_not_at_all() -> None:
    requests = ClosedLoop(num_users=30, num_requests=4, prompt=Fixed(9), output=Fixed(9)).requests(0)
    assert [(request.arrival_s, request.follows) for request in requests] == [(0.0, "")] * 4


def test_each_turn_repeats_all_before_it_and_adds_its_own() -> None:
    for turns in sessions(CHAT).values():
        assert turns[0].num_prompt_tokens > 64
        for before, turn in pairwise(turns):
            assert turn.num_prompt_tokens > before.num_prompt_tokens + before.num_output_tokens
            assert turn.follows == before.request_id
            assert (turn.content_id, turn.hash_ids, turn.client_id) == (before.content_id, before.hash_ids, "")
    assert max(map(len, sessions(CHAT).values())) > 3


def test_a_clients_limit_on_the_output_limits_the_history() -> None:
    capped = Sessions(rate=1, num_sessions=1, max_tokens=7, turns=Fixed(3), prompt=Fixed(10), output=Fixed(50))
    assert [request.num_prompt_tokens for request in capped.requests(0)] == [10, 27, 44]


def test_turns_come_after_a_think_time_and_sessions_at_their_rate() -> None:
    many = Sessions(rate=4, num_sessions=2000, think_s=10, turns=Fixed(3), prompt=Fixed(9), output=Fixed(9))
    requests = many.requests(0)
    first = [request for request in requests if not request.follows]
    assert len(first) / first[-1].arrival_s == pytest.approx(4, rel=0.1)
    assert np.mean([request.think_s for request in requests if request.follows]) == pytest.approx(10, rel=0.08)


def test_the_same_seed_gives_the_same_sessions_and_more_sessions_come_after_the_same_first_ones() -> None:
    assert CHAT.requests(1) == CHAT.requests(1) != CHAT.requests(2)
    longer = Sessions(**{**vars(CHAT), "num_sessions": 60})
    assert list(sessions(longer).values())[:50] == list(sessions(CHAT).values())


def test_a_session_is_of_one_class_whose_lengths_it_has() -> None:
    classes = {"terse": RequestClass(share=0.5, priority=3, output=Fixed(1)), "chatty": RequestClass(share=0.5)}
    turns = sessions(Sessions(**{**vars(CHAT), "classes": classes}))
    kinds = {name: {turn.class_name for turn in session} for name, session in turns.items()}
    assert all(len(kind) == 1 for kind in kinds.values())
    terse = [turn for session in turns.values() for turn in session if turn.class_name == "terse"]
    assert len(terse) > 0
    assert {(turn.priority, turn.num_output_tokens) for turn in terse} == {(3, 1)}


def test_blocks_of_a_session_are_named_by_its_prefix_and_then_by_itself() -> None:
    turn = next(iter(sessions(CHAT).values()))[0]
    assert len(turn.block_hashes(16)) == 4
    assert turn.content_id == "s00000"
    others = [turns[0] for turns in sessions(CHAT).values() if turns[0].hash_ids == turn.hash_ids]
    assert len(others) > 5
    assert {tuple(other.block_hashes(16)) for other in others} == {tuple(turn.block_hashes(16))}


def request(name: str, num_prompt_tokens: int = 10, **fields: Any) -> WorkloadRequest:
    return WorkloadRequest(name, num_prompt_tokens=num_prompt_tokens, num_output_tokens=1,
                           **{"arrival_s": 0.0, **fields})  # fmt: skip


def test_a_plan_says_who_comes_when_an_answer_ends() -> None:
    plan = Plan.of([
        request("early", arrival_s=1.0), request("late", arrival_s=3.0),
        request("slow", follows="early", think_s=9.0), request("quick", follows="early", think_s=2.0),
    ])  # fmt: skip
    assert [each.request_id for each in plan.opening] == ["early", "late"]
    assert [(each.request_id, each.arrival_s) for each in plan.follow_ups("early", 5.0)] == [("quick", 7), ("slow", 14)]
    assert plan.follow_ups("late", 5.0) == []


@pytest.mark.parametrize("names", [("b", "a"), ("a", "a"), ("a", "b")])
def test_a_request_that_might_wait_for_ever_is_refused(names: tuple[str, str]) -> None:
    with pytest.raises(InputError, match="follows request 'b', which does not come before it"):
        Plan.of([request(names[0], follows="b"), request(names[1])])


def test_whoever_follows_a_request_that_is_left_out_takes_its_place() -> None:
    requests = [
        request("a", 999, arrival_s=4.0), request("b", follows="a", think_s=1.0),
        request("c", 999, follows="b", think_s=2.0), request("d", 999, follows="c", think_s=3.0),
        request("e", follows="d", think_s=5.0),
    ]  # fmt: skip
    kept, num_dropped = check_lengths(requests, 100, "drop")
    assert num_dropped == 3
    assert [(each.request_id, each.follows, each.think_s, each.arrival_s) for each in kept] == [
        ("b", "", 0.0, 4.0),
        ("e", "b", 2.0, 0.0),
    ]


@pytest.mark.parametrize(
    ("workload", "field", "value"),
    [
        (USERS, "num_users", 0),
        (USERS, "think_s", -1),
        (USERS, "num_requests", 1.5),
        (CHAT, "num_sessions", 0),
        (CHAT, "think_s", "long"),
        (CHAT, "rate", 0),
        (CHAT, "turns", 3),
        (CHAT, "prefixes", 5),
        (CHAT, "arrivals", None),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(workload: Any, field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"workload\.{field}={value}"):
        type(workload)(**{**vars(workload), field: value})


def test_one_line_says_what_the_workload_is() -> None:
    assert USERS.describe() == (
        "10 requests of 3 users, who think 2 s on average; prompts: 100 tokens; outputs: 10 tokens"
    )
    assert CHAT.describe() == (
        "50 sessions at 2/s, Poisson arrivals; turns: lognormal (median 3, sigma 0.8); think 10 s; 2 shared prefixes "
        "of 64 tokens (Zipf 1); a turn's own prompt: lognormal (median 50, sigma 1); outputs: lognormal (median 80, "
        "sigma 0.8)"
    )
