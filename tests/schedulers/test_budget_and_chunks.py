"""How a step is filled: slots, token budget, chunks, and whose turn it is."""

from __future__ import annotations

import pytest

from schedulers import FCFS, ChunkedPrefill, InputError, Limits, Priority, Scheduler, Static
from tests.schedulers.builders import (
    POLICIES,
    add_requests,
    create_request,
    create_scheduler,
    ids,
    run_step,
    run_to_end,
)

CHUNKED = (ChunkedPrefill, Priority)
WHOLE = (FCFS, Static)


@pytest.mark.parametrize("policy", POLICIES)
def test_short_requests_with_room_to_spare_are_scheduled_whole_in_one_step_in_order_of_arrival(
    policy: type[Scheduler],
) -> None:
    scheduler = create_scheduler(policy)
    requests = add_requests(scheduler, [10 + i for i in range(10)])
    output, events = run_step(scheduler)
    assert list(output.num_scheduled_tokens.items()) == [(f"r{i}", 10 + i) for i in range(10)]
    assert output.sampled_ids == [new.request_id for new in output.new_requests] == ids(requests)
    assert list(events.new_token_ids) == ids(requests)


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_arrive_out_of_order_are_served_in_order_of_arrival_time(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, max_num_seqs=2)
    for name, arrival_time in (("late", 2.0), ("early", 1.0), ("as early", 1.0)):
        scheduler.add_request(create_request(name, arrival_time=arrival_time))
    assert list(scheduler.schedule(2.0).num_scheduled_tokens) == ["early", "as early"]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_more_are_admitted_than_there_are_slots(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, max_num_seqs=3)
    add_requests(scheduler, [10] * 16)
    output, _ = run_step(scheduler)
    assert list(output.num_scheduled_tokens) == ["r0", "r1", "r2"]
    assert (scheduler.num_running, scheduler.num_waiting) == (3, 13)


@pytest.mark.parametrize("policy", CHUNKED)
def test_chunks_are_capped_and_what_is_left_of_the_budget_goes_to_the_next(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, token_budget=1024, max_chunk=400)
    add_requests(scheduler, [800, 800, 800])
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 400, "r1": 400, "r2": 224}
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 400, "r1": 400, "r2": 224}
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 1, "r1": 1, "r2": 352}
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 1, "r1": 1, "r2": 1}


@pytest.mark.parametrize("policy", CHUNKED)
def test_two_prompts_share_the_budget_when_prompts_are_chunked(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, token_budget=1024)
    add_requests(scheduler, [800, 800, 10, 10])
    output, _ = run_step(scheduler)
    assert output.num_scheduled_tokens == {"r0": 800, "r1": 224}
    assert output.sampled_ids == ["r0"]


@pytest.mark.parametrize("policy", WHOLE)
def test_a_short_prompt_does_not_overtake_a_long_one_that_does_not_fit_when_prompts_are_whole(
    policy: type[Scheduler],
) -> None:
    scheduler = create_scheduler(policy, token_budget=1024)
    add_requests(scheduler, [800, 800, 10, 10])
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 800}


@pytest.mark.parametrize("policy", CHUNKED)
def test_a_decode_is_in_every_step_however_much_prefill_waits(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, token_budget=64)
    add_requests(scheduler, [10], max_tokens=40)
    run_step(scheduler)
    for i in range(10):
        scheduler.add_request(create_request(f"long {i}", 500, arrival_time=1.0))
    for _ in range(39):
        output, _ = run_step(scheduler, 1.0)
        assert output.num_scheduled_tokens["r0"] == 1
        assert next(iter(output.num_scheduled_tokens)) == "r0"
        assert output.total_num_scheduled_tokens == 64


@pytest.mark.parametrize("policy", CHUNKED)
def test_decodes_come_before_prompts_in_progress_that_were_admitted_earlier(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, token_budget=40, max_chunk=15)
    add_requests(scheduler, [100, 100, 10])
    assert list(run_step(scheduler)[0].num_scheduled_tokens.items()) == [("r0", 15), ("r1", 15), ("r2", 10)]
    assert list(run_step(scheduler)[0].num_scheduled_tokens.items()) == [("r2", 1), ("r0", 15), ("r1", 15)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_longer_than_the_budget_takes_several_steps_and_samples_only_in_the_last(
    policy: type[Scheduler],
) -> None:
    scheduler = create_scheduler(policy, token_budget=50)
    (request,) = add_requests(scheduler, [80])
    first, events = run_step(scheduler)
    assert (first.num_scheduled_tokens, first.sampled_ids) == ({"r0": 50}, [])
    assert (events.new_token_ids, request.output_token_ids) == ({}, [])
    second, events = run_step(scheduler)
    assert (second.num_scheduled_tokens, second.sampled_ids) == ({"r0": 30}, ["r0"])
    assert request.output_token_ids == [7]
    assert (first.shape.prefills, second.shape.prefills) == ([(50, 0)], [(30, 50)])
    assert run_step(scheduler)[0].shape.decode_contexts == [80]


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_in_flight_are_not_scheduled_again_before_their_step_is_known(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy)
    add_requests(scheduler, [10, 10])
    assert scheduler.schedule(0.0).num_scheduled_tokens == {"r0": 10, "r1": 10}
    assert scheduler.schedule(0.0).num_scheduled_tokens == {}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_decodes_shows_in_the_shape_as_a_decode_over_its_context(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy)
    add_requests(scheduler, [10, 1])
    shape = run_step(scheduler)[0].shape
    assert (shape.prefills, shape.decode_contexts, shape.num_sampled) == ([(10, 0), (1, 0)], [], 2)
    shape = run_step(scheduler)[0].shape
    assert (shape.prefills, shape.decode_contexts, shape.num_sampled) == ([], [10, 1], 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_of_one_token_and_one_slot_still_serves_everybody(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, token_budget=1, max_num_seqs=1)
    requests = add_requests(scheduler, [5, 3, 1], max_tokens=2)
    steps = run_to_end(scheduler)
    assert all(sum(step.values()) == 1 for step in steps)
    assert [request.num_output_tokens for request in requests] == [2, 2, 2]


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_scheduler_schedules_nothing(policy: type[Scheduler]) -> None:
    output = create_scheduler(policy).schedule(0.0)
    assert output.num_scheduled_tokens == {}
    assert output.total_num_scheduled_tokens == 0


@pytest.mark.parametrize("max_chunk", [0, -1])
@pytest.mark.parametrize("policy", CHUNKED)
def test_a_chunk_below_one_token_is_refused_by_name(policy: type[Scheduler], max_chunk: int) -> None:
    with pytest.raises(InputError, match="max_chunk"):
        create_scheduler(policy, max_chunk=max_chunk)


@pytest.mark.parametrize("name", ["token_budget", "max_num_seqs", "num_blocks", "block_size", "max_model_len"])
@pytest.mark.parametrize("value", [0, -1, 2.5, None, "8"])
def test_a_limit_that_is_no_whole_number_of_at_least_one_is_refused_by_name(name: str, value: object) -> None:
    fields = {"token_budget": 8, "max_num_seqs": 8, "num_blocks": 8, "block_size": 8, "max_model_len": 8, name: value}
    with pytest.raises(InputError, match=name):
        Limits(**fields)  # type: ignore[arg-type]
