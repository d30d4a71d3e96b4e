"""The static policy: a batch runs to completion."""

from __future__ import annotations

from schedulers import Static
from tests.schedulers.builders import add_requests, create_request, create_scheduler, ids, run_step, run_to_end


def test_nobody_joins_a_batch_until_its_last_request_has_finished() -> None:
    scheduler = create_scheduler(Static)
    scheduler.add_request(create_request("short", max_tokens=1))
    scheduler.add_request(create_request("long", max_tokens=4))
    run_step(scheduler)
    scheduler.add_request(create_request("late", arrival_time=1.0))
    for _ in range(3):
        assert run_step(scheduler, 1.0)[0].num_scheduled_tokens == {"long": 1}
    assert run_step(scheduler, 1.0)[0].num_scheduled_tokens == {"late": 10}


def test_a_batch_is_formed_in_as_many_steps_as_the_budget_makes_of_its_prompts_and_then_decodes_together() -> None:
    scheduler = create_scheduler(Static, token_budget=50)
    add_requests(scheduler, [30, 30, 120, 5], max_tokens=3)
    steps = run_to_end(scheduler)
    assert steps[:5] == [{"r0": 30}, {"r1": 30}, {"r2": 50}, {"r2": 50}, {"r2": 20, "r3": 5}]
    assert steps[5:] == [dict.fromkeys(("r0", "r1", "r2", "r3"), 1)] * 2


def test_whoever_arrives_while_a_batch_is_being_formed_does_not_join_it() -> None:
    scheduler = create_scheduler(Static, token_budget=50)
    add_requests(scheduler, [30, 30], max_tokens=2)
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 30}
    scheduler.add_request(create_request("late", 10, arrival_time=9.0, max_tokens=1))
    assert run_step(scheduler, 9.0)[0].num_scheduled_tokens == {"r1": 30}
    assert run_to_end(scheduler) == [{"r0": 1, "r1": 1}, {"late": 10}]


def test_a_request_that_ends_early_frees_its_memory_at_once() -> None:
    scheduler = create_scheduler(Static)
    scheduler.add_request(create_request("short", 64, max_tokens=1))
    scheduler.add_request(create_request("long", 16, max_tokens=4))
    _, events = run_step(scheduler)
    assert ids(events.finished) == ["short"]
    assert scheduler.kv_cache.num_free_blocks == scheduler.kv_cache.num_blocks - 1


def test_whoever_is_preempted_comes_back_with_the_next_batch_before_those_that_never_ran() -> None:
    scheduler = create_scheduler(Static, num_blocks=3, block_size=4, max_num_seqs=2)
    requests = add_requests(scheduler, [4, 4, 4], max_tokens=6)
    steps = run_to_end(scheduler)
    assert steps[0] == {"r0": 4, "r1": 4}
    assert steps[1:6] == [{"r0": 1}] * 5
    assert steps[6] == {"r1": 5, "r2": 4}
    assert [request.num_preemptions for request in requests][:2] == [0, 1]
