"""What ends a request, where its output is cut, and who is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schedulers import FinishReason, Request, Scheduler, SchedulerError, Status, StepResult
from tests.schedulers.builders import (
    POLICIES,
    add_requests,
    create_request,
    create_scheduler,
    ids,
    run_step,
    run_to_end,
)

EOS = 2


def serve(samples: Sequence[Sequence[int]], **fields: Any) -> tuple[Request, int]:
    """One request whose steps sample these tokens; the request, and how many steps it took."""
    scheduler = create_scheduler(max_model_len=64)
    request = create_request("r0", 10, **fields)
    scheduler.add_request(request)
    for num_steps, tokens in enumerate(samples, 1):
        _, events = run_step(scheduler, float(num_steps), {"r0": tokens})
        if events.finished:
            assert events.finished == [request]
            assert request.finish_time == num_steps
            return request, num_steps
    return request, len(samples)


def test_a_stop_token_among_several_sampled_tokens_cuts_the_output_behind_it_and_is_named() -> None:
    scheduler = create_scheduler()
    (request,) = add_requests(scheduler, [10], stop_token_ids=[5, 6])
    _, events = run_step(scheduler, 1.0, {"r0": [1, 6, 3, 5]})
    assert list(events.new_token_ids["r0"]) == request.output_token_ids == [1, 6]
    assert (request.finish_reason, request.stop_token) == (FinishReason.STOP, 6)
    assert request.token_times == [1.0, 1.0]


def test_eos_ends_the_output_and_is_part_of_it() -> None:
    request, num_steps = serve([[1], [1], [EOS], [1]], eos_token_id=EOS)
    assert (num_steps, request.output_token_ids) == (3, [1, 1, EOS])
    assert (request.finish_reason, request.stop_token) == (FinishReason.STOP, EOS)


def test_a_token_that_is_nobody_s_stop_token_ends_nothing() -> None:
    request, _ = serve([[EOS], [5]], stop_token_ids=[6])
    assert request.status is Status.RUNNING


def test_ignore_eos_runs_past_eos_but_not_past_stop_tokens() -> None:
    request, _ = serve([[EOS], [EOS], [5]], eos_token_id=EOS, ignore_eos=True, stop_token_ids=[5])
    assert request.output_token_ids == [EOS, EOS, 5]
    assert request.stop_token == 5


@pytest.mark.parametrize("stop", [EOS, 5])
def test_min_tokens_holds_eos_and_stop_tokens_back_until_it_is_reached(stop: int) -> None:
    request, num_steps = serve([[stop]] * 5, eos_token_id=EOS, stop_token_ids=[5], min_tokens=3)
    assert num_steps == 3
    assert (request.finish_reason, request.stop_token) == (FinishReason.STOP, stop)


@pytest.mark.parametrize("fields", [{"max_tokens": 3, "min_tokens": 3}, {"max_tokens": 3}])
def test_max_tokens_ends_the_output_with_reason_length(fields: dict[str, int]) -> None:
    request, num_steps = serve([[1]] * 9, **fields)
    assert (num_steps, request.num_output_tokens) == (3, 3)
    assert (request.finish_reason, request.stop_token) == (FinishReason.LENGTH, None)


def test_a_length_cap_wins_over_min_tokens() -> None:
    request, num_steps = serve([[EOS]] * 99, eos_token_id=EOS, min_tokens=1000)
    assert num_steps == request.num_output_tokens == 64 - 10
    assert request.finish_reason is FinishReason.LENGTH


def test_eos_as_the_last_token_allowed_is_a_stop() -> None:
    request, _ = serve([[1], [EOS]], eos_token_id=EOS, max_tokens=2)
    assert request.finish_reason is FinishReason.STOP


def test_several_sampled_tokens_are_cut_at_the_length_limit() -> None:
    request, _ = serve([[1, 1, 1, 1, 1]], max_tokens=3)
    assert request.output_token_ids == [1, 1, 1]
    assert request.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("policy", POLICIES)
def test_one_token_at_most_ends_with_the_first_and_reason_length(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy)
    (request,) = add_requests(scheduler, [10], max_tokens=1)
    _, events = run_step(scheduler)
    assert events.finished == [request]
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.LENGTH, 1)
    assert run_step(scheduler)[0].finished_ids == ["r0"]


@pytest.mark.parametrize("policy", POLICIES)
def test_without_max_tokens_the_model_s_limit_or_the_cache_ends_the_output(policy: type[Scheduler]) -> None:
    cases: list[tuple[dict[str, Any], int]] = [({"max_model_len": 24}, 24), ({"num_blocks": 2}, 32)]
    for limits, longest in cases:
        scheduler = create_scheduler(policy, **limits)
        (request,) = add_requests(scheduler, [10])
        run_to_end(scheduler)
        assert (request.num_tokens, request.finish_reason) == (longest, FinishReason.LENGTH)


def reach(state: str, policy: type[Scheduler]) -> tuple[Scheduler, Request]:
    """A scheduler with a request "r1" in this state."""
    scheduler = create_scheduler(policy, num_blocks=5, block_size=16, token_budget=61, prefix_caching=False)
    request = create_request(
        "r1", 70 if state == "in the middle of its prompt" else 30, arrival_time=1.0, max_tokens=10
    )
    if state == "preempted":
        scheduler.add_request(create_request("r0", 31, max_tokens=40))  # grows until it needs the blocks of the other
    scheduler.add_request(request)
    if state not in ("waiting", "preempted"):
        run_step(scheduler)
    if state == "in flight":
        scheduler.schedule(0.5)
    if state == "preempted":
        for _ in range(40):
            if request.status is not Status.PREEMPTED:
                run_step(scheduler)
        assert request.status is Status.PREEMPTED
    return scheduler, request


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", ["waiting", "in the middle of its prompt", "running", "in flight", "preempted"])
def test_an_aborted_request_frees_everything_at_once_and_its_id_can_be_used_again(
    policy: type[Scheduler], state: str
) -> None:
    scheduler, request = reach(state, policy)
    others = [other for other in scheduler.running if other is not request]
    assert scheduler.abort_request("r1", 1.0) is request
    assert (request.status, request.finish_reason) == (Status.FINISHED, FinishReason.ABORT)
    assert (request.block_ids, request.finish_time) == ([], 1.0)
    assert scheduler.running == others
    assert scheduler.num_waiting == 0
    scheduler.kv_cache.check_integrity(others)
    assert scheduler.abort_request("r1", 1.0) is None

    again = create_request("r1", 5, arrival_time=2.0, max_tokens=2)
    scheduler.add_request(again)
    output, _ = run_step(scheduler, 2.0)
    assert output.finished_ids == ([] if state == "waiting" else ["r1"])
    run_to_end(scheduler)
    assert again.output_token_ids == [7, 7]


def test_aborting_nobody_changes_nothing() -> None:
    assert create_scheduler().abort_request("nobody", 0.0) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_workers_hear_once_of_every_request_that_ended_and_that_they_know(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, max_num_seqs=2)
    add_requests(scheduler, [10, 10, 10], max_tokens=1)
    scheduler.abort_request("r2", 0.0)  # never scheduled
    run_step(scheduler)
    assert scheduler.schedule(1.0).finished_ids == ["r0", "r1"]
    assert scheduler.schedule(2.0).finished_ids == []


@pytest.mark.parametrize("answer", [{}, {"r0": []}])
def test_a_world_that_samples_nothing_for_who_is_due_is_told_so(answer: dict[str, list[int]]) -> None:
    scheduler = create_scheduler()
    add_requests(scheduler, [10])
    output = scheduler.schedule(0.0)
    with pytest.raises(SchedulerError, match=r"step 1.*'r0'"):
        scheduler.update_from_output(output, StepResult(answer), 1.0)


def test_finished_requests_are_reported_in_the_order_of_the_batch() -> None:
    scheduler = create_scheduler()
    requests = add_requests(scheduler, [10] * 5, max_tokens=1)
    assert ids(run_step(scheduler)[1].finished) == ids(requests)
