"""Preemption by recomputation: what is taken, what is kept, and what a step undoes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schedulers import Batch, Request, Scheduler, SchedulerError, Status
from tests.schedulers.builders import (
    POLICIES,
    add_requests,
    composed,
    create_request,
    create_scheduler,
    run_step,
    run_to_end,
    sample,
    schedule_all,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_preempted_request_keeps_its_tokens_and_computes_them_again(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, num_blocks=4, block_size=16, prefix_caching=False)
    first, second = add_requests(scheduler, [31, 30], max_tokens=20)
    run_step(scheduler, 1.0)
    run_step(scheduler, 2.0)
    output = scheduler.schedule(3.0)  # the first needs a third block
    assert output.preempted_ids == ["r1"]
    assert second.status is Status.PREEMPTED
    assert (second.block_ids, second.num_computed_tokens, second.num_preemptions) == ([], 0, 1)
    assert (second.output_token_ids, second.token_times) == ([7, 7], [1.0, 2.0])
    scheduler.update_from_output(output, sample(output), 3.0)
    scheduler.abort_request("r0", 4.0)
    output, _ = run_step(scheduler, 4.0)
    assert output.num_scheduled_tokens == {"r1": 32}
    assert (output.new_requests, output.resumed_requests[0].request_id) == ([], "r1")
    assert output.shape.prefills == [(32, 0)]
    assert second.output_token_ids == [7, 7, 7]
    assert second.first_scheduled_time == 1.0
    assert first.status is Status.FINISHED


@pytest.mark.parametrize("policy", POLICIES)
def test_a_preempted_request_comes_back_ahead_of_requests_that_have_not_run(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, num_blocks=4, block_size=16, max_num_seqs=2, prefix_caching=False)
    add_requests(scheduler, [31, 30, 5, 5], max_tokens=20)
    order = [request_id for step in run_to_end(scheduler) for request_id, n in step.items() if n > 1]
    assert order[:3] == ["r0", "r1", "r1"]
    assert set(order[3:]) == {"r2", "r3"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_preempted_request_may_find_its_own_blocks_in_the_prefix_cache(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, num_blocks=5, block_size=16, max_num_seqs=2)
    _, second = add_requests(scheduler, [47, 31], max_tokens=3)
    run_step(scheduler)
    run_step(scheduler)
    run_step(scheduler)
    assert second.num_preemptions == 1
    output, _ = run_step(scheduler)
    assert [(resumed.request_id, resumed.num_computed_tokens) for resumed in output.resumed_requests] == [("r1", 16)]
    cache = scheduler.kv_cache
    assert (cache.num_rehit_tokens, second.num_recached_tokens) == (16, 16)
    assert (cache.num_hit_tokens, second.num_cached_tokens) == (0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_preemptions_are_counted_by_step_and_by_request(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, num_blocks=6, block_size=4, max_num_seqs=4)
    requests = add_requests(scheduler, [4, 4, 4, 4], max_tokens=12)
    num_by_step = 0
    for _ in range(200):
        output, _ = run_step(scheduler)
        num_by_step += len(output.preempted_ids)
    assert [request.num_output_tokens for request in requests] == [12] * 4
    assert num_by_step == sum(request.num_preemptions for request in requests) > 0


def test_a_request_preempted_after_it_was_scheduled_in_the_same_step_leaves_no_trace_in_it() -> None:
    scheduler = composed(token_budget=100, block_size=16)
    scheduler.how = schedule_all
    first, second = add_requests(scheduler, [20, 16], max_tokens=9)
    run_step(scheduler)

    def undo(batch: Batch) -> None:
        batch.schedule(first)
        num_free, budget = batch.num_free_blocks, batch.budget_left
        assert batch.schedule(second) == 1  # into a second block
        batch.preempt(second)
        assert batch.budget_left == budget
        assert batch.num_free_blocks == num_free + 1
        assert batch.schedule(second) == 0  # not before the next step

    scheduler.how = undo
    output, events = run_step(scheduler)
    assert output.num_scheduled_tokens == {"r0": 1}
    assert (output.sampled_ids, output.new_block_ids) == (["r0"], {})
    assert output.shape.decode_contexts == [20]
    assert output.preempted_ids == ["r1"]
    assert list(events.new_token_ids) == ["r0"]
    assert second.output_token_ids == [7]


def test_a_request_admitted_and_sent_back_in_the_same_step_has_never_run() -> None:
    scheduler = composed(block_size=16)
    (request,) = add_requests(scheduler, [40])

    def admit_and_send_back(batch: Batch) -> None:
        assert batch.schedule(request) == 40
        batch.preempt(request)

    scheduler.how = admit_and_send_back
    output = scheduler.schedule(0.0)
    assert (output.num_scheduled_tokens, output.new_requests, output.preempted_ids) == ({}, [], [])
    assert (request.status, request.num_preemptions, request.first_scheduled_time) == (Status.WAITING, 0, None)
    assert scheduler.kv_cache.num_free_blocks == scheduler.kv_cache.num_blocks
    assert scheduler.kv_cache.find_prefix(create_request("r0", 40)) == []  # nothing was computed
    scheduler.how = schedule_all
    assert [new.request_id for new in scheduler.schedule(1.0).new_requests] == ["r0"]
    assert request.first_scheduled_time == 1.0


def test_a_look_up_that_was_undone_in_the_same_step_is_not_counted() -> None:
    scheduler = composed(block_size=16)
    scheduler.how = schedule_all
    add_requests(scheduler, [range(40)], max_tokens=1)
    run_step(scheduler)
    request = create_request("again", range(40))
    scheduler.add_request(request)

    def admit_and_send_back(batch: Batch) -> None:
        assert batch.schedule(request) == 8
        batch.preempt(request)

    cache = scheduler.kv_cache
    before = cache.num_lookup_tokens, cache.num_hit_tokens
    scheduler.how = admit_and_send_back
    scheduler.schedule(1.0)
    assert (cache.num_lookup_tokens, cache.num_hit_tokens) == before
    assert request.num_cached_tokens == 0
    scheduler.how = schedule_all
    scheduler.schedule(2.0)
    assert (cache.num_lookup_tokens, cache.num_hit_tokens) == (80, 32)
    assert request.num_cached_tokens == 32


def test_a_hit_after_a_preemption_that_was_undone_in_the_same_step_is_not_counted() -> None:
    scheduler = composed(block_size=16)
    scheduler.how = schedule_all
    (request,) = add_requests(scheduler, [40])
    run_step(scheduler)
    scheduler.how = lambda batch: batch.preempt(request)
    scheduler.schedule(1.0)

    def admit_and_send_back(batch: Batch) -> None:
        assert batch.schedule(request) == 9
        batch.preempt(request)

    scheduler.how = admit_and_send_back
    scheduler.schedule(2.0)
    assert (scheduler.kv_cache.num_rehit_tokens, request.num_recached_tokens, request.num_preemptions) == (0, 0, 1)


def test_requests_that_share_a_prefix_not_yet_computed_lose_their_place_with_its_owner() -> None:
    scheduler = composed(block_size=4)
    owner, sharer, other = add_requests(scheduler, [range(10), range(10), range(50, 60)])

    def undo(batch: Batch) -> None:
        schedule_all(batch)
        assert sharer.num_computed_tokens == 8
        batch.preempt(owner)

    scheduler.how = undo
    output, _ = run_step(scheduler)
    assert output.num_scheduled_tokens == {"r2": 10}
    assert (owner.status, sharer.status, other.status) == (Status.WAITING, Status.WAITING, Status.RUNNING)
    assert scheduler.kv_cache.find_prefix(create_request("next", range(10))) == []


def test_requests_that_share_a_prefix_of_an_earlier_step_keep_their_place_when_its_owner_goes() -> None:
    scheduler = composed(block_size=4)
    scheduler.how = schedule_all
    (owner,) = add_requests(scheduler, [range(10)])
    run_step(scheduler)
    sharer = create_request("sharer", range(10))
    scheduler.add_request(sharer)

    def undo(batch: Batch) -> None:
        schedule_all(batch)
        batch.preempt(owner)

    scheduler.how = undo
    output, _ = run_step(scheduler)
    assert output.num_scheduled_tokens == {"sharer": 2}
    assert sharer.num_cached_tokens == 8


def test_results_of_requests_preempted_or_aborted_in_flight_are_dropped_and_others_arrive_in_order() -> None:
    scheduler = composed(block_size=16)
    scheduler.how = schedule_all
    stays, preempted, aborted = add_requests(scheduler, [10, 10, 10])
    first = scheduler.schedule(0.0)
    scheduler.how = lambda batch: batch.preempt(preempted)
    second = scheduler.schedule(0.1)
    scheduler.abort_request("r2", 0.2)
    scheduler.how = schedule_all
    third = scheduler.schedule(0.3)
    assert (second.num_scheduled_tokens, second.preempted_ids) == ({}, ["r1"])
    assert (third.num_scheduled_tokens, third.finished_ids) == ({"r1": 10}, ["r2"])

    events = scheduler.update_from_output(first, sample(first), 1.0)
    assert dict(events.new_token_ids) == {"r0": [7]}
    assert (stays.output_token_ids, preempted.output_token_ids, aborted.output_token_ids) == ([7], [], [])
    scheduler.update_from_output(second, sample(second), 1.1)
    events = scheduler.update_from_output(third, sample(third, {"r1": [8]}), 1.2)
    assert dict(events.new_token_ids) == {"r1": [8]}
    assert preempted.token_times == [1.2]


def test_a_result_meant_for_an_aborted_request_does_not_reach_a_later_one_of_the_same_id() -> None:
    scheduler = create_scheduler()
    add_requests(scheduler, [10])
    first = scheduler.schedule(0.0)
    scheduler.abort_request("r0", 0.1)
    (later,) = add_requests(scheduler, [12])
    second = scheduler.schedule(0.2)
    assert (second.finished_ids, [new.request_id for new in second.new_requests]) == (["r0"], ["r0"])
    assert scheduler.update_from_output(first, sample(first), 1.0).new_token_ids == {}
    assert later.output_token_ids == []
    scheduler.update_from_output(second, sample(second), 2.0)
    assert later.token_times == [2.0]


@pytest.mark.parametrize("finish_first", [True, False])
def test_finishing_and_preempting_the_same_request_frees_its_blocks_once(finish_first: bool) -> None:
    scheduler = composed(block_size=16)
    scheduler.how = schedule_all
    (request,) = add_requests(scheduler, [40], max_tokens=1)
    output = scheduler.schedule(0.0)
    scheduler.how = lambda batch: batch.preempt(request)
    if finish_first:
        scheduler.update_from_output(output, sample(output), 1.0)
        with pytest.raises(SchedulerError, match="not running"):
            scheduler.schedule(1.0)
    else:
        scheduler.schedule(1.0)
        scheduler.update_from_output(output, sample(output), 1.0)
        assert request.status is Status.PREEMPTED
        scheduler.abort_request("r0", 2.0)
    scheduler.kv_cache.check_integrity([])
    assert scheduler.kv_cache.num_free_blocks == scheduler.kv_cache.num_blocks


def test_an_allocation_that_fails_changes_nothing() -> None:
    scheduler = create_scheduler(num_blocks=3, block_size=4)
    (request,) = add_requests(scheduler, [6], max_tokens=2)
    run_step(scheduler)
    blocks = request.block_ids.copy()
    assert not scheduler.kv_cache.allocate(request, 13)
    assert (request.block_ids, request.block_capacity) == (blocks, 8)
    assert scheduler.kv_cache.num_free_blocks == 1
    scheduler.kv_cache.check_integrity([request])


class MakesWay(Scheduler):
    """Lets arrivals displace whoever runs; no limit on what a request may compute."""

    def order(self, request: Request, now: float) -> int:
        return request.priority

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        least = max(running, key=lambda request: request.priority)
        return least if least.priority > candidate.priority else None

    def compose(self, batch: Batch, now: float) -> None:
        for request in batch.running:
            batch.schedule(request)
        for request in batch.waiting:
            if not batch.schedule(request):
                break


class MakesWayForAll(MakesWay):
    """The same with whole prompts, from the second step on."""

    def compose(self, batch: Batch, now: float) -> None:
        for request in batch.running:
            batch.schedule(request)
        for request in batch.waiting:
            batch.schedule(request, whole=batch.step > 1)


def test_whoever_displaces_the_owner_of_its_prefix_in_the_same_step_gets_all_of_its_tokens_or_none() -> None:
    scheduler = create_scheduler(MakesWayForAll, token_budget=12, num_blocks=6, block_size=4)
    scheduler.add_request(create_request("owner", range(22), priority=5, max_tokens=2))
    assert run_step(scheduler)[0].num_scheduled_tokens == {"owner": 12}
    # "owner" goes on to its 22nd token; of its six blocks "urgent" shares five, and it needs one more.
    scheduler.add_request(create_request("urgent", [*range(20), 50, 51], priority=0, max_tokens=2))
    output, _ = run_step(scheduler)
    assert output.preempted_ids == ["owner"]
    # Two of the five are not computed after all, so that ten tokens are left and not two.
    assert output.num_scheduled_tokens == {"urgent": 10}


def test_whoever_displaces_a_request_of_the_same_step_runs_in_it_though_the_budget_grew_by_what_was_undone() -> None:
    scheduler = create_scheduler(MakesWay, token_budget=6, num_blocks=4, block_size=4)
    scheduler.add_request(create_request("stays", 9, priority=0, max_tokens=4))
    scheduler.add_request(create_request("yields", 3, priority=5, max_tokens=4))
    assert run_step(scheduler)[0].num_scheduled_tokens == {"stays": 6}
    assert run_step(scheduler)[0].num_scheduled_tokens == {"stays": 3, "yields": 3}
    scheduler.add_request(create_request("urgent", 8, priority=1, max_tokens=4))
    output, _ = run_step(scheduler)
    # "yields" had taken one token and left four, for which its one block was enough; then there were five.
    assert output.preempted_ids == ["yields"]
    assert output.num_scheduled_tokens == {"stays": 1, "urgent": 4}
