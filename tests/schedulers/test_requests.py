"""What a request may ask, and which requests are refused when they arrive."""

from __future__ import annotations

import re
from typing import Any

import pytest

from schedulers import SLO, Request, RequestRefused, Scheduler, Status
from tests.schedulers.builders import POLICIES, add_requests, create_request, create_scheduler, run_step, run_to_end
from tests.schedulers.snapshots import snapshot


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_token_ids": []}, "prompt is empty"),
        ({}, "prompt is empty"),
        ({"num_prompt_tokens": 0}, "prompt is empty"),
        ({"num_prompt_tokens": -3}, "prompt is empty"),
        ({"prompt_token_ids": [1, 2], "num_prompt_tokens": 3}, "num_prompt_tokens=3"),
        ({"num_prompt_tokens": 3, "max_tokens": 0}, "max_tokens=0"),
        ({"num_prompt_tokens": 3, "max_tokens": -1}, "max_tokens=-1"),
        ({"num_prompt_tokens": 3, "min_tokens": -1}, "min_tokens=-1"),
        ({"num_prompt_tokens": 3, "min_tokens": 5, "max_tokens": 4}, "min_tokens=5"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestRefused, match=f"'r0'.*{re.escape(named)}"):
        Request("r0", 0.0, **fields)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("limits", "whose"),
    [
        ({"num_blocks": 4, "block_size": 16}, "whole KV cache of 64 tokens"),
        ({"max_model_len": 64}, "model's limit of 64 tokens"),
    ],
)
def test_a_request_that_can_never_fit_is_refused_on_arrival_with_the_reason_and_others_go_on(
    policy: type[Scheduler], limits: dict[str, Any], whose: str
) -> None:
    scheduler = create_scheduler(policy, **limits)
    (fits,) = add_requests(scheduler, [60], max_tokens=4)
    before = snapshot(scheduler)
    for prompt, max_tokens in ((60, 5), (64, None), (64, 1), (100, 1), (1, 64)):
        with pytest.raises(RequestRefused, match=f"'too long'.*{whose}"):
            scheduler.add_request(create_request("too long", prompt, max_tokens=max_tokens))
    assert snapshot(scheduler) == before
    run_to_end(scheduler)
    assert fits.num_output_tokens == 4


@pytest.mark.parametrize("policy", POLICIES)
def test_the_longest_prompt_that_leaves_one_token_to_produce_is_served(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, max_model_len=64, token_budget=10)
    (request,) = add_requests(scheduler, [63])
    run_to_end(scheduler)
    assert request.num_output_tokens == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_fills_the_whole_cache_is_served_alone(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, num_blocks=4, block_size=4, token_budget=5)
    requests = add_requests(scheduler, [12, 3, 15], max_tokens=1)
    requests += [create_request("long", 4, max_tokens=12, arrival_time=3.0)]
    scheduler.add_request(requests[-1])
    run_to_end(scheduler)
    assert [request.num_output_tokens for request in requests] == [1, 1, 1, 12]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_live_id_is_refused_until_its_request_has_ended(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy)
    add_requests(scheduler, [10], max_tokens=2)
    for _ in range(2):
        before = snapshot(scheduler)
        with pytest.raises(RequestRefused, match="'r0' is already being served"):
            scheduler.add_request(create_request("r0", 20))
        assert snapshot(scheduler) == before
        run_step(scheduler)
    scheduler.add_request(create_request("r0", 20))
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 20}


@pytest.mark.parametrize("end", ["finished", "aborted while waiting"])
def test_a_request_object_that_was_served_is_refused_by_name(end: str) -> None:
    scheduler = create_scheduler()
    (request,) = add_requests(scheduler, [10], max_tokens=1)
    if end == "finished":
        run_step(scheduler)
    else:
        scheduler.abort_request("r0", 0.0)
    with pytest.raises(RequestRefused, match=r"'r0'.*served before"):
        scheduler.add_request(request)


def test_a_request_carries_what_policies_of_the_literature_need_and_a_fresh_one_has_no_progress() -> None:
    request = Request(
        "r0",
        1.5,
        [1, 2, 3],
        max_tokens=9,
        priority=2,
        client_id="client",
        session_id="session",
        slo=SLO(ttft_s=0.2, tpot_s=0.05),
        predicted_output_tokens=7.5,
        cache_salt="salt",
    )
    assert (request.priority, request.client_id, request.session_id) == (2, "client", "session")
    assert (request.slo, request.predicted_output_tokens) == (SLO(0.2, 0.05), 7.5)
    assert (request.status, request.num_tokens, request.num_remaining_tokens) == (Status.WAITING, 3, 3)
    assert (request.num_output_tokens, request.num_preemptions) == (0, 0)
    assert repr(request) == "<Request 'r0' waiting 0/3 computed, 0 produced>"


def test_a_request_does_not_say_how_long_its_output_will_be() -> None:
    assert not [name for name in Request.__slots__ if "length" in name or name == "num_output_tokens"]
