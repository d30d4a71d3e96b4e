"""A policy of one's own: one decision, or a whole composition; and when it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from schedulers import (
    SLO,
    Batch,
    Request,
    Scheduler,
    SchedulerError,
    Status,
)
from tests.schedulers.builders import (
    add_requests,
    composed,
    create_request,
    create_scheduler,
    ids,
    run_step,
    run_to_end,
)

# -- one decision ------------------------------------------------------------------------------------------------------


class ShortestPromptFirst(Scheduler):
    def order(self, request: Request, now: float) -> int:
        return request.num_prompt_tokens


class HighestResponseRatioNext(Scheduler):
    """Whoever has waited longest for its size."""

    order_changes = True

    def order(self, request: Request, now: float) -> float:
        return (request.arrival_time - now) / request.num_prompt_tokens


class OneAtATime(Scheduler):
    def admit(self, request: Request, batch: Batch) -> bool:
        return not batch.running


class SmallChunks(Scheduler):
    def chunk(self, request: Request, batch: Batch) -> int:
        return 3


class OldestYields(Scheduler):
    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        return running[0]


class NobodyYields(Scheduler):
    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        return None


def test_overriding_the_order_changes_who_is_served_first_and_equals_keep_the_order_of_arrival() -> None:
    scheduler = create_scheduler(ShortestPromptFirst, max_num_seqs=3)
    add_requests(scheduler, [30, 10, 20, 10])
    assert list(run_step(scheduler)[0].num_scheduled_tokens) == ["r1", "r3", "r2"]


@pytest.mark.parametrize(("now", "first"), [(95.0, "long"), (110.0, "short")])
def test_an_order_that_changes_with_time_is_asked_anew_each_step(now: float, first: str) -> None:
    scheduler = create_scheduler(HighestResponseRatioNext, max_num_seqs=1)
    scheduler.add_request(create_request("long", 100, arrival_time=0.0))
    scheduler.add_request(create_request("short", 10, arrival_time=90.0))
    assert list(run_step(scheduler, now)[0].num_scheduled_tokens) == [first]


def test_overriding_the_admission_holds_the_queue_back() -> None:
    scheduler = create_scheduler(OneAtATime)
    add_requests(scheduler, [10, 10], max_tokens=2)
    assert run_to_end(scheduler) == [{"r0": 10}, {"r0": 1}, {"r1": 10}, {"r1": 1}]


def test_overriding_the_chunk_limits_prompts_and_leaves_decodes_alone() -> None:
    scheduler = create_scheduler(SmallChunks)
    add_requests(scheduler, [7], max_tokens=2)
    assert run_to_end(scheduler) == [{"r0": 3}, {"r0": 3}, {"r0": 1}, {"r0": 1}]


@pytest.mark.parametrize(("policy", "preempted"), [(OldestYields, "r0"), (Scheduler, "r1"), (NobodyYields, "r0")])
def test_overriding_the_victim_changes_who_yields_and_if_nobody_does_whoever_cannot_grow_goes(
    policy: type[Scheduler], preempted: str
) -> None:
    scheduler = create_scheduler(policy, num_blocks=2, block_size=16)
    requests = add_requests(scheduler, [16, 10], max_tokens=4)
    run_step(scheduler)
    assert run_step(scheduler)[0].preempted_ids == [preempted]
    run_to_end(scheduler)
    assert [request.num_output_tokens for request in requests] == [4, 4]


# -- a composition -----------------------------------------------------------------------------------------------------


class DecodesAlone(Scheduler):
    """Never mixes: a step of decodes if there is one, else one prompt."""

    def compose(self, batch: Batch, now: float) -> None:
        for request in batch.running:
            if request.num_remaining_tokens == 1:
                batch.schedule(request)
        if batch.is_empty:
            for request in [*batch.running, *batch.waiting]:
                if batch.schedule(request):
                    break


def test_overriding_the_composition_decides_the_whole_step() -> None:
    scheduler = create_scheduler(DecodesAlone, token_budget=8)
    add_requests(scheduler, [10, 3], max_tokens=3)
    assert run_to_end(scheduler) == [
        {"r0": 8},
        {"r0": 2},
        {"r0": 1},
        {"r0": 1},
        {"r1": 3},
        {"r1": 1},
        {"r1": 1},
    ]


def test_a_policy_that_asks_for_more_than_there_is_gets_what_there_is() -> None:
    got: list[int] = []

    def greedy(batch: Batch) -> None:
        got.extend(batch.schedule(request, 10**9) for request in [*batch.running, *batch.waiting])
        assert batch.budget_left >= 0
        assert batch.slots_left >= 0

    scheduler = composed(greedy, token_budget=25, max_num_seqs=3, num_blocks=4, block_size=8)
    add_requests(scheduler, [10, 3, 20, 20])
    assert run_step(scheduler)[0].total_num_scheduled_tokens == sum(got)
    assert got == [10, 3, 0, 0]  # the third would get 12 tokens, for which the block that is left is too small


def test_scheduling_a_request_twice_in_a_step_does_nothing_the_second_time() -> None:
    scheduler = composed(lambda batch: [batch.schedule(request, 4) for request in [*batch.waiting] * 3])
    add_requests(scheduler, [10])
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 4}
    scheduler.how = lambda batch: [batch.schedule(request, 4) for request in batch.running * 3]
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 4}


@pytest.mark.parametrize("num_tokens", [0, -1, -(10**9)])
def test_asking_for_no_tokens_schedules_nothing_and_admits_nobody(num_tokens: int) -> None:
    scheduler = composed(lambda batch: [batch.schedule(request, num_tokens) for request in batch.waiting])
    (request,) = add_requests(scheduler, [10])
    assert run_step(scheduler)[0].num_scheduled_tokens == {}
    assert request.status is Status.WAITING
    scheduler.how = lambda batch: batch.schedule(request)
    run_step(scheduler)
    scheduler.how = lambda batch: batch.schedule(request, num_tokens)
    assert run_step(scheduler)[0].num_scheduled_tokens == {}


def test_the_queue_can_be_walked_while_its_requests_are_scheduled_and_preempted() -> None:
    seen = []

    def walk(batch: Batch) -> None:
        for request in batch.waiting:
            seen.append(request.request_id)
            batch.schedule(request, 5)
            if len(seen) % 2:
                batch.preempt(request)

    scheduler = composed(walk)
    add_requests(scheduler, [10] * 5)
    output, _ = run_step(scheduler)
    assert seen == ["r0", "r1", "r2", "r3", "r4"]
    assert output.num_scheduled_tokens == {"r1": 5, "r3": 5}
    assert ids(list(scheduler.waiting)) == ["r0", "r2", "r4"]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [2.5, 4.0, "4"])
def test_a_chunk_that_is_no_whole_number_is_refused_by_name(num_tokens: Any) -> None:
    class Halves(Scheduler):
        def chunk(self, request: Request, batch: Batch) -> int:
            return num_tokens  # type: ignore[no-any-return]

    scheduler = create_scheduler(Halves)
    add_requests(scheduler, [10])
    with pytest.raises(SchedulerError, match=f"step 1: .*{num_tokens!r}"):
        scheduler.schedule(0.0)


class Boom(Exception):
    pass


def boom(*_: Any) -> Any:
    raise Boom("out of ideas")


@pytest.mark.parametrize("decision", ["compose", "admit", "chunk", "victim"])
def test_a_policy_that_raises_in_a_step_ends_in_one_error_that_names_step_policy_and_reason(decision: str) -> None:
    policy = type("Broken", (Scheduler,), {decision: boom})
    scheduler = create_scheduler(policy, max_num_seqs=2, num_blocks=2, block_size=8)
    add_requests(scheduler, [8, 8, 8], max_tokens=4)  # the second step needs a victim
    with pytest.raises(SchedulerError, match=r"step [12]: Broken raised Boom: out of ideas .*test_three_ways_in"):
        run_to_end(scheduler)


def test_an_order_that_raises_when_it_is_asked_anew_ends_in_one_error_that_names_step_policy_and_reason() -> None:
    class Broken(Scheduler):
        order_changes = True

        def order(self, request: Request, now: float) -> int:
            return boom() if now else 0

    scheduler = create_scheduler(Broken)
    add_requests(scheduler, [8])
    with pytest.raises(SchedulerError, match=r"step 1: Broken raised Boom: out of ideas .*test_three_ways_in"):
        scheduler.schedule(1.0)


@pytest.mark.parametrize("order", [boom, lambda self, request, now: request.slo and request.slo.ttft_s])
def test_an_order_that_raises_or_cannot_be_compared_when_a_request_arrives_says_so_and_keeps_nothing_of_it(
    order: Callable[..., Any],
) -> None:
    policy = type("Broken", (Scheduler,), {"order": order})
    scheduler = create_scheduler(policy)
    if order is not boom:
        scheduler.add_request(create_request("r0", slo=SLO(ttft_s=1.0)))
    with pytest.raises(SchedulerError, match="Broken raised"):
        scheduler.add_request(create_request("r1"))
    assert scheduler.num_waiting == (order is not boom)
    assert scheduler.abort_request("r1", 0.0) is None


def test_a_policy_that_asks_in_vain_forever_is_stopped_and_named() -> None:
    def forever(batch: Batch) -> None:
        while batch.budget_left:
            for request in batch.running:
                batch.schedule(request)

    scheduler = composed(lambda batch: [batch.schedule(request) for request in batch.waiting])
    add_requests(scheduler, [10])
    run_step(scheduler)
    scheduler.how = forever
    with pytest.raises(SchedulerError, match="step 2: Composed loops"):
        scheduler.schedule(1.0)


def test_asking_in_vain_for_everybody_once_is_no_loop() -> None:
    scheduler = composed(lambda batch: [batch.schedule(request) for request in batch.waiting], max_num_seqs=1)
    add_requests(scheduler, [1] * 3000)
    assert len(run_step(scheduler)[0].num_scheduled_tokens) == 1


def finished_request() -> Request:
    other = create_scheduler()
    request = create_request("r0", max_tokens=1)
    other.add_request(request)
    run_step(other)
    return request


def request_running_elsewhere() -> Request:
    other = create_scheduler(num_blocks=2)
    request = create_request("elsewhere")
    other.add_request(request)
    run_step(other)
    return request


def request_waiting_elsewhere() -> Request:
    request = create_request("elsewhere")
    create_scheduler().add_request(request)
    return request


def namesake_of_a_waiting_request() -> Request:
    return create_request("r1", 99)


@pytest.mark.parametrize("act", ["schedule", "preempt"])
@pytest.mark.parametrize(
    "make",
    [
        finished_request,
        request_running_elsewhere,
        request_waiting_elsewhere,
        namesake_of_a_waiting_request,
        lambda: create_request("never added"),
    ],
    ids=["finished", "running elsewhere", "waiting elsewhere", "namesake", "never added"],
)
def test_a_request_that_is_not_this_scheduler_s_is_refused_by_name_and_nothing_is_corrupted(
    make: Callable[[], Request], act: str
) -> None:
    scheduler = composed(lambda batch: [batch.schedule(request) for request in batch.waiting], max_num_seqs=1)
    mine = add_requests(scheduler, [10, 10])
    run_step(scheduler)
    stranger = make()
    scheduler.how = lambda batch: getattr(batch, act)(stranger)
    with pytest.raises(SchedulerError, match=f"step 2: .*{stranger.request_id}.* cannot be {act}"):
        scheduler.schedule(1.0)
    scheduler.kv_cache.check_integrity(mine)
    assert ids(scheduler.running) == ["r0"]
    assert list(scheduler.waiting) == [mine[1]]


def test_a_victim_that_does_not_run_is_refused_by_name() -> None:
    stranger = create_request("stranger")

    class WrongVictim(Scheduler):
        def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
            return stranger

    scheduler = create_scheduler(WrongVictim, num_blocks=2, block_size=16)
    add_requests(scheduler, [16, 10], max_tokens=4)
    run_step(scheduler)
    with pytest.raises(SchedulerError, match=r"step 2: .*stranger.*not running"):
        scheduler.schedule(1.0)
