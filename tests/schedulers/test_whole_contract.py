"""A scheduler that shares nothing but the contract, and the checks that every step of any scheduler passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schedulers import (
    Batch,
    BatchShape,
    FinishReason,
    KVCache,
    Limits,
    NewRequest,
    Priority,
    Request,
    SchedulerContract,
    SchedulerError,
    SchedulerOutput,
    Status,
    StepEvents,
    StepResult,
)
from schedulers.invariants import StepChecker
from tests.schedulers.builders import add_requests, composed, create_request, create_scheduler

# -- the whole contract ------------------------------------------------------------------------------------------------


class OneByOne:
    """A scheduler that shares nothing but the contract: one request at a time, one step for its prompt."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kv_cache = KVCache(limits.num_blocks, limits.block_size, prefix_caching=False)
        self.queue: list[Request] = []
        self._step = 0

    @property
    def num_running(self) -> int:
        return min(len(self.queue), 1)

    @property
    def num_waiting(self) -> int:
        return max(len(self.queue) - 1, 0)

    def add_request(self, request: Request) -> None:
        request.token_limit = request.num_prompt_tokens + (request.max_tokens or 10)
        self.queue.append(request)

    def abort_request(self, request_id: str, now: float) -> Request | None:
        for request in self.queue:
            if request.request_id == request_id:
                self._end(request, FinishReason.ABORT, now)
                return request
        return None

    def schedule(self, now: float) -> SchedulerOutput:
        self._step += 1
        shape, scheduled, new = BatchShape(), {}, []
        if self.queue:
            request = self.queue[0]
            scheduled[request.request_id] = request.num_remaining_tokens
            if request.num_computed_tokens:
                shape.decode_contexts.append(request.num_computed_tokens)
            else:
                request.status, request.first_scheduled_time = Status.RUNNING, now
                shape.prefills.append((request.num_tokens, 0))
            shape.num_sampled = 1
            self.kv_cache.allocate(request, request.num_tokens)
            if not request.num_computed_tokens:
                new.append(NewRequest(request.request_id, None, None, request.block_ids.copy(), 0))
        return SchedulerOutput(self._step, scheduled, list(scheduled), new, [], {}, [], [], shape)

    def update_from_output(self, output: SchedulerOutput, result: StepResult, now: float) -> StepEvents:
        finished = []
        for request in self.queue[: len(output.sampled_ids)]:
            request.num_computed_tokens = request.num_tokens
            request.output_token_ids.extend(result.sampled_token_ids[request.request_id])
            request.token_times.append(now)
            request.num_tokens += 1
            if request.num_tokens == request.token_limit:
                self._end(request, FinishReason.LENGTH, now)
                finished.append(request)
        return StepEvents(result.sampled_token_ids, finished)

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        self.queue.remove(request)
        self.kv_cache.free(request)
        request.status, request.finish_reason, request.finish_time = Status.FINISHED, reason, now


def check(checker: StepChecker, output: SchedulerOutput, live: Sequence[Request]) -> None:
    checker.check(output, {request.request_id: request for request in live})


def test_a_scheduler_of_the_contract_alone_passes_the_checks_of_every_step() -> None:
    scheduler: SchedulerContract = OneByOne(Limits(token_budget=64, max_num_seqs=4, num_blocks=10))
    requests = [create_request(f"r{i}", 10, max_tokens=3) for i in range(3)]
    for request in requests:
        scheduler.add_request(request)
    checker = StepChecker(scheduler)
    for step in range(9):
        output = scheduler.schedule(float(step))
        check(checker, output, requests)
        scheduler.update_from_output(output, StepResult(dict.fromkeys(output.sampled_ids, (7,))), step + 0.5)
    assert [request.output_token_ids for request in requests] == [[7, 7, 7]] * 3
    assert scheduler.kv_cache.usage == 0.0


# -- the checks of every step ------------------------------------------------------------------------------------------


def outputs(scheduled: dict[str, int], **fields: Any) -> SchedulerOutput:
    shape = fields.pop("shape", BatchShape([(num_tokens, 0) for num_tokens in scheduled.values()], [], 0))
    return SchedulerOutput(3, scheduled, fields.pop("sampled_ids", []), [], [], {}, [], [], shape)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (outputs({"r0": 65}), "65 tokens; the token budget is 64"),
        (outputs({"r0": 60, "r1": 5}), "65 tokens; the token budget is 64"),
        (outputs({f"r{i}": 1 for i in range(5)}), "5 requests; the sequence limit is 4"),
        (outputs({"r0": 5, "r1": 0}), "less than one token"),
        (outputs({"r0": 5, "r1": -2}), "less than one token"),
        (outputs({"r0": 5, "stranger": 5}), "'stranger'"),
        (outputs({"r0": 5}, sampled_ids=["r1"]), "'r1'"),
        (outputs({"r0": 65}, shape=BatchShape([(5, 0)])), "65 tokens; the token budget is 64"),
    ],
)
def test_a_step_that_breaks_an_invariant_is_refused_with_its_number_the_policy_and_the_invariant(
    output: SchedulerOutput, problem: str
) -> None:
    scheduler = OneByOne(Limits(token_budget=64, max_num_seqs=4, num_blocks=10))
    live = [create_request(f"r{i}") for i in range(5)]
    with pytest.raises(SchedulerError, match=f"step 3: OneByOne .*{problem}"):
        check(StepChecker(scheduler), output, live)


def test_a_step_that_schedules_nothing_while_requests_wait_names_them() -> None:
    scheduler = composed(lambda batch: None)
    add_requests(scheduler, [10, 10], max_tokens=4)
    checker = StepChecker(scheduler)
    with pytest.raises(SchedulerError, match=r"step 1: Composed .*nothing.*r0.*r1"):
        check(checker, scheduler.schedule(0.0), list(scheduler.waiting))


def test_a_policy_that_starves_everybody_is_stopped() -> None:
    """It preempts whoever is about to produce a token: always busy, and nothing ever comes out."""

    def starve(batch: Batch) -> None:
        for request in batch.running:
            if request.num_remaining_tokens <= 4:
                batch.preempt(request)
        for request in [*batch.running, *batch.waiting]:
            batch.schedule(request)

    scheduler = composed(starve, token_budget=4, prefix_caching=False)
    requests = add_requests(scheduler, [12, 12])
    checker = StepChecker(scheduler)

    def run() -> None:
        for step in range(1000):
            output = scheduler.schedule(float(step))
            check(checker, output, requests)
            scheduler.update_from_output(output, StepResult({}), float(step))

    with pytest.raises(SchedulerError, match=r"step \d+: Composed makes no progress"):
        run()


@pytest.mark.parametrize("num_patient", [0, 1])
def test_long_prompts_that_their_clients_cancel_one_after_the_other_are_not_taken_for_starvation(
    num_patient: int,
) -> None:
    scheduler = create_scheduler(Priority, token_budget=10, max_num_seqs=1)
    checker = StepChecker(scheduler)
    patient = [create_request("patient", 20, priority=9)] * num_patient
    for request in patient:
        scheduler.add_request(request)
    for i in range(50):
        request = create_request(f"r{i}", 100)
        scheduler.add_request(request)
        for _ in range(9):
            output = scheduler.schedule(float(i))
            check(checker, output, [*patient, request])
            scheduler.update_from_output(output, StepResult({}), float(i))
        scheduler.abort_request(request.request_id, float(i))
