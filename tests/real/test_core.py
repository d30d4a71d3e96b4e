"""The engine core, in the test's process, with a worker that needs no model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from real.config import EngineConfig
from real.core import EngineCore
from real.messages import AbortRequests, AddRequest, AskReport, Report, Update, Updates
from real.sampling_params import SamplingParams
from schedulers import Batch, Request, Scheduler, SchedulerError
from tests.real.stand_in import StandIn, expected


class Lazy(Scheduler):
    """Schedules nothing."""

    def compose(self, batch: Batch, now: float) -> None: ...


class Broken(Scheduler):
    """Raises as soon as it has to decide."""

    def order(self, request: Request, now: float) -> float:
        return request.arrival_time / 0


@pytest.fixture
def make_core() -> Iterator[Any]:
    cores = []

    def make(**arguments: Any) -> EngineCore:
        arguments = {"executor": StandIn, "skip_tokenizer": True, "num_blocks": 64, "keep_records": True} | arguments
        cores.append(EngineCore(EngineConfig.from_arguments(**arguments)))
        return cores[-1]

    yield make
    for core in cores:
        core.shutdown()


def add(number: int, prompt: list[int], *, request_id: str = "", max_tokens: int = 4, **fields: Any) -> AddRequest:
    return AddRequest(
        number,
        request_id or f"r{number}",
        time.perf_counter(),
        prompt,
        SamplingParams(max_tokens=max_tokens),
        **fields,
    )


def run(core: EngineCore, *messages: Any) -> list[Update]:
    """Hand over messages, and step until nothing is left to do."""
    updates: list[Update] = []
    answers = core.turn(messages)
    while True:
        for answer in answers:
            if isinstance(answer, Updates):
                updates += answer.updates
        if not core.has_work:
            return updates
        answers = core.turn([])


def tokens_of(updates: list[Update], number: int) -> list[int]:
    return [token for update in updates if update.number == number for token in update.new_token_ids]


def is_empty(core: EngineCore) -> bool:
    report = core.report()
    return (report.num_running, report.num_waiting, report.num_free_blocks) == (0, 0, core.ready.num_kv_blocks)


def test_each_request_gets_its_own_tokens_and_everything_is_free_afterwards(make_core: Any) -> None:
    core = make_core()
    prompts = [[1, 2, 3], [50] * 40, [7]]
    updates = run(core, *(add(number, prompt) for number, prompt in enumerate(prompts)))
    for number, prompt in enumerate(prompts):
        assert tokens_of(updates, number) == expected(prompt, 4)
    assert [update.finish_reason for update in updates].count("length") == 3
    assert is_empty(core)


@pytest.mark.parametrize("scheduler", ["chunked_prefill", "fcfs", "priority", "static"])
def test_preemptions_in_a_tiny_cache_lose_no_token_under_any_policy(make_core: Any, scheduler: str) -> None:
    core = make_core(scheduler=scheduler, num_blocks=8, block_size=4, token_budget=16, prefix_caching=False)
    prompts = [[number + 1] * 5 for number in range(6)]
    updates = run(core, *(add(number, prompt, max_tokens=20) for number, prompt in enumerate(prompts)))
    for number, prompt in enumerate(prompts):
        assert tokens_of(updates, number) == expected(prompt, 20)
    report = core.report()
    assert sum(step.num_preemptions for step in report.step_records) > 0
    assert report.num_free_blocks == 8


def test_a_request_that_can_never_fit_is_refused_with_the_reason_and_others_go_on(make_core: Any) -> None:
    core = make_core(num_blocks=4)
    updates = run(core, add(0, [1] * 100), add(1, [2, 3]))
    assert updates[0].finish_reason == "error"
    assert "exceed the whole KV cache of 64 tokens" in str(updates[0].error)
    assert tokens_of(updates, 1) == expected([2, 3], 4)


def test_an_id_that_is_being_served_is_refused(make_core: Any) -> None:
    core = make_core()
    updates = run(core, add(0, [1], request_id="same"), add(1, [2], request_id="same"))
    assert [update.error for update in updates if update.number == 1] == [
        "request 'same' is already being served; ids of live requests must differ"
    ]
    assert tokens_of(updates, 0) == expected([1], 4)


def test_what_exceeds_the_queue_is_refused_clearly(make_core: Any) -> None:
    core = make_core(max_waiting=3, max_num_seqs=1)
    updates = run(core, *(add(number, [number + 1]) for number in range(5)))
    refused = [update for update in updates if update.finish_reason == "error"]
    assert [update.number for update in refused] == [3, 4]
    assert "the queue is full, 3 requests wait (max_waiting=3); try again later" in str(refused[0].error)
    assert is_empty(core)


def test_an_abort_frees_everything_in_every_state(make_core: Any) -> None:
    core = make_core(max_num_seqs=2, num_blocks=8, block_size=4, token_budget=8, prefix_caching=False)
    core.turn([add(0, [1] * 20, max_tokens=8)])  # in the middle of its prompt
    core.turn([add(1, [2] * 2, max_tokens=20), add(2, [3] * 2, max_tokens=4)])  # decoding, and waiting
    running = {request.request_id for request in core.scheduler.running}
    assert "r0" in running
    core.turn([AbortRequests([0, 1, 2, 99])])  # and one that never was
    assert not core.has_work
    assert is_empty(core)
    records = core.report().request_records
    assert records == []  # the report in is_empty took them
    assert tokens_of(run(core, add(3, [5])), 3) == expected([5], 4)


def test_a_preempted_request_can_be_aborted(make_core: Any) -> None:
    core = make_core(num_blocks=8, block_size=4, token_budget=16, prefix_caching=False)
    core.turn([add(number, [number + 1] * 6, max_tokens=20) for number in range(4)])
    while not any(request.num_preemptions for request in core._live.values()):
        core.turn([])
    victim = next(request for request in core._live.values() if request.num_preemptions)
    core.turn([AbortRequests([int(victim.request_id[1:])])])
    run(core)
    assert is_empty(core)


def test_an_abort_and_a_new_request_of_the_same_id_in_one_turn_do_not_mix(make_core: Any) -> None:
    core = make_core()
    core.turn([add(0, [1], request_id="same", max_tokens=50)])
    updates = run(core, AbortRequests([0]), add(1, [2], request_id="same"))
    assert {update.number for update in updates} == {1}
    assert tokens_of(updates, 1) == expected([2], 4)


def test_an_eos_or_stop_token_ends_the_output_and_is_told(make_core: Any) -> None:
    core = make_core()
    third = expected([9], 3)[2]
    updates = run(
        core, add(0, [9], eos_token_id=third, max_tokens=10), add(1, [9], stop_token_ids=(third,), max_tokens=10)
    )
    for number in (0, 1):
        assert tokens_of(updates, number) == expected([9], 3)
    assert [update.stop_token for update in updates if update.finish_reason == "stop"] == [third, third]


def test_records_tell_steps_and_requests_in_order_of_the_clock(make_core: Any) -> None:
    core = make_core(token_budget=8)
    start = time.perf_counter()
    run(core, add(0, [1] * 20, priority=3, client_id="c", session_id="s"))
    report = core.turn([AskReport()])[0]
    assert isinstance(report, Report)
    steps = report.step_records
    assert [step.num_prefill_tokens for step in steps] == [8, 8, 4, 0, 0, 0]
    assert [step.num_decode_tokens for step in steps] == [0, 0, 0, 1, 1, 1]
    times = [moment for step in steps for moment in (step.start_s, step.end_s)]
    assert times == sorted(times)
    assert start < times[0]
    [request] = report.request_records
    assert (request.request_id, request.finish_reason, request.priority) == ("r0", "length", 3)
    assert list(request.token_times_s) == [step.end_s for step in steps[2:]]
    assert (report.num_steps, report.num_tokens) == (6, 23)
    assert core.report().step_records == []  # each record is told once


def test_without_keep_records_nothing_piles_up(make_core: Any) -> None:
    core = make_core(keep_records=False)
    run(core, add(0, [1]))
    report = core.report()
    assert (report.step_records, report.request_records, report.num_steps) == ([], [], 4)


def test_a_policy_that_stalls_or_raises_is_named_with_the_step(make_core: Any) -> None:
    with pytest.raises(SchedulerError, match="step 1: Lazy schedules nothing although"):
        run(make_core(scheduler=Lazy), add(0, [1]))
    with pytest.raises(SchedulerError, match="Broken raised ZeroDivisionError"):
        run(make_core(scheduler=Broken), add(0, [1]))
