"""The priority policy: who is served first, and who must go."""

from __future__ import annotations

import pytest

from schedulers import Priority, Request, Scheduler, Status
from tests.schedulers.builders import add_requests, create_request, create_scheduler, ids, run_step, run_to_end


def urgent(name: str = "urgent", prompt: int = 10, *, priority: int = 0, arrival_time: float = 9.0) -> Request:
    return create_request(name, prompt, priority=priority, arrival_time=arrival_time)


def running(scheduler: Scheduler) -> list[str]:
    return ids(scheduler.running)


def test_waiting_requests_are_served_by_priority_value_then_by_arrival() -> None:
    scheduler = create_scheduler(Priority)
    for name, priority, arrival_time in (("a", 2, 0.0), ("b", 0, 3.0), ("c", 1, 1.0), ("d", 0, 2.0), ("e", 0, 3.0)):
        scheduler.add_request(create_request(name, priority=priority, arrival_time=arrival_time))
    assert ids(list(scheduler.waiting)) == ["d", "b", "e", "c", "a"]
    assert list(run_step(scheduler, 3.0)[0].num_scheduled_tokens) == ["d", "b", "e", "c", "a"]


def test_with_room_to_spare_nobody_is_displaced_and_priorities_show_nothing() -> None:
    with_priorities, without = create_scheduler(Priority), create_scheduler(Priority)
    for i in range(6):
        with_priorities.add_request(create_request(f"r{i}", priority=9 - i, arrival_time=float(i)))
        without.add_request(create_request(f"r{i}", arrival_time=float(i)))
        mine, other = run_step(with_priorities, float(i))[0], run_step(without, float(i))[0]
        assert mine.num_scheduled_tokens == other.num_scheduled_tokens
        assert mine.preempted_ids == []


def test_a_more_urgent_arrival_that_finds_no_blocks_displaces_the_least_urgent() -> None:
    scheduler = create_scheduler(Priority, num_blocks=4, block_size=16)
    for i, priority in enumerate((1, 5, 3)):
        scheduler.add_request(create_request(f"r{i}", priority=priority, arrival_time=float(i), max_tokens=4))
    run_step(scheduler)
    scheduler.add_request(urgent(prompt=30))
    output, _ = run_step(scheduler, 9.0)
    assert output.preempted_ids == ["r1"]
    assert running(scheduler) == ["r0", "r2", "urgent"]
    assert output.num_scheduled_tokens == {"r0": 1, "r2": 1, "urgent": 30}


def test_a_more_urgent_arrival_displaces_as_many_as_it_needs_least_urgent_first() -> None:
    scheduler = create_scheduler(Priority, num_blocks=4, block_size=16)
    for i, priority in enumerate((1, 5, 3, 4)):
        scheduler.add_request(create_request(f"r{i}", priority=priority, arrival_time=float(i), max_tokens=4))
    run_step(scheduler)
    scheduler.add_request(urgent(prompt=40))
    assert run_step(scheduler, 9.0)[0].preempted_ids == ["r1", "r3", "r2"]
    assert running(scheduler) == ["r0", "urgent"]


def test_nobody_is_displaced_by_an_arrival_for_which_that_would_not_make_enough_room() -> None:
    scheduler = create_scheduler(Priority, num_blocks=4, block_size=16)
    scheduler.add_request(create_request("more urgent", 40, priority=0, max_tokens=2))
    scheduler.add_request(create_request("less urgent", 10, priority=5, max_tokens=2))
    run_step(scheduler)
    scheduler.add_request(urgent("arrival", 30, priority=3))
    output, _ = run_step(scheduler, 9.0)
    assert output.preempted_ids == []
    assert list(output.num_scheduled_tokens) == ["more urgent", "less urgent"]


def test_blocks_that_an_arrival_shares_with_a_running_request_make_no_room_for_it() -> None:
    scheduler = create_scheduler(Priority, num_blocks=4, block_size=4)
    scheduler.add_request(create_request("more urgent", 3, priority=0, max_tokens=2))
    scheduler.add_request(create_request("less urgent", range(9), priority=5, max_tokens=2))
    run_step(scheduler)
    # It shares two of the three blocks of "less urgent" and needs two more, of which one would become free.
    scheduler.add_request(create_request("arrival", [*range(8), 50, 51, 52, 53, 54], priority=3, max_tokens=2))
    output, _ = run_step(scheduler, 9.0)
    assert output.preempted_ids == []
    assert list(output.num_scheduled_tokens) == ["more urgent", "less urgent"]


def test_blocks_that_an_arrival_finds_free_in_the_cache_are_no_room_for_the_rest_of_it() -> None:
    scheduler = create_scheduler(Priority, num_blocks=4, block_size=4)
    scheduler.add_request(create_request("first", range(9), max_tokens=1))
    run_step(scheduler)
    scheduler.add_request(create_request("running", 6, arrival_time=1.0, max_tokens=2))
    run_step(scheduler, 1.0)
    # Two blocks are free, and they are the prefix that it finds; its last token needs a third. It is not more urgent.
    scheduler.add_request(create_request("again", range(9), max_tokens=1))
    output, _ = run_step(scheduler, 2.0)
    assert output.preempted_ids == []
    assert output.num_scheduled_tokens == {"running": 1}


@pytest.mark.parametrize(("priority", "displaced"), [(3, []), (4, []), (2, ["r1"])])
def test_with_all_slots_taken_only_a_strictly_more_urgent_arrival_displaces_the_least_urgent(
    priority: int, displaced: list[str]
) -> None:
    scheduler = create_scheduler(Priority, max_num_seqs=2)
    scheduler.add_request(create_request("r0", priority=0))
    scheduler.add_request(create_request("r1", priority=3))
    run_step(scheduler)
    scheduler.add_request(urgent(priority=priority))
    output, _ = run_step(scheduler, 9.0)
    assert output.preempted_ids == displaced
    assert running(scheduler) == (["r0", "urgent"] if displaced else ["r0", "r1"])


def test_among_equals_the_latest_arrival_is_displaced() -> None:
    scheduler = create_scheduler(Priority, max_num_seqs=3)
    add_requests(scheduler, [10, 10, 10], priority=3)
    run_step(scheduler)
    scheduler.add_request(urgent())
    assert run_step(scheduler, 9.0)[0].preempted_ids == ["r2"]


def test_a_running_request_that_cannot_grow_takes_the_place_of_the_least_urgent_or_gives_up_its_own() -> None:
    scheduler = create_scheduler(Priority, num_blocks=2, block_size=16)
    scheduler.add_request(create_request("less", 16, priority=5, max_tokens=8))
    scheduler.add_request(create_request("more", 16, priority=1, arrival_time=1.0, max_tokens=8))
    run_step(scheduler)
    output, _ = run_step(scheduler)
    assert output.preempted_ids == ["less"]
    assert output.num_scheduled_tokens == {"more": 1}


def test_everybody_is_served_in_the_end() -> None:
    scheduler = create_scheduler(Priority, num_blocks=6, block_size=4, token_budget=7, max_num_seqs=3)
    requests = [
        create_request(f"r{i}", 1 + i % 9, priority=i % 4, arrival_time=float(i), max_tokens=9) for i in range(20)
    ]
    for request in requests:
        scheduler.add_request(request)
    run_to_end(scheduler)
    assert all(request.num_output_tokens == 9 for request in requests)
    assert sum(request.num_preemptions for request in requests) > 0
    assert all(request.status is Status.FINISHED for request in requests)
