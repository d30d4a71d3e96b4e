"""The input batch against the scheduler's own books: every token, position and slot of every step."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from real.input_batch import FlatBatch, InputBatch
from schedulers import (
    FCFS,
    BatchShape,
    ChunkedPrefill,
    Limits,
    NewRequest,
    Priority,
    Request,
    ResumedRequest,
    Scheduler,
    SchedulerError,
    SchedulerOutput,
    StepResult,
)
from tests.schedulers.chaotic import Chaotic


def step_of(**changes: Any) -> SchedulerOutput:
    """A step that changes only this."""
    parts: dict[str, Any] = {
        "step": 1,
        "num_scheduled_tokens": {},
        "sampled_ids": [],
        "new_requests": [],
        "resumed_requests": [],
        "new_block_ids": {},
        "finished_ids": [],
        "preempted_ids": [],
        "shape": BatchShape(),
    }
    return SchedulerOutput(**(parts | changes))


def check(flat: FlatBatch, output: SchedulerOutput, requests: dict[str, Request], block_size: int) -> None:
    """Everything in the flat batch is what the scheduler's requests say, token by token in plain Python."""
    assert sorted(flat.request_ids) == sorted(output.num_scheduled_tokens)
    place = 0
    for index, name in enumerate(flat.request_ids):
        request, count = requests[name], output.num_scheduled_tokens[name]
        start = request.num_computed_tokens
        assert flat.query_lens[index] == count
        assert flat.query_start[index] == place
        assert flat.context_lens[index] == start + count
        num_blocks = -(-(start + count) // block_size)
        assert flat.block_tables[index, :num_blocks].tolist() == request.block_ids[:num_blocks]
        known = [*request.prompt_token_ids, *request.output_token_ids]
        for position in range(start, start + count):
            assert flat.positions[place] == position
            assert flat.token_ids[place] == known[position]
            assert flat.slots[place] == request.block_ids[position // block_size] * block_size + position % block_size
            place += 1
    assert flat.query_start[len(flat.request_ids)] == place == len(flat.token_ids)
    assert sorted(flat.request_ids[index] for index in flat.samples) == sorted(output.sampled_ids)
    lengths = flat.query_lens.tolist()
    assert lengths[: flat.num_decodes] == [1] * flat.num_decodes
    assert 1 not in lengths[flat.num_decodes :]


@pytest.mark.parametrize("policy", [ChunkedPrefill, FCFS, Priority, Chaotic])
@pytest.mark.parametrize("seed", range(5))
def test_the_flat_batch_is_what_the_scheduler_means_through_arrivals_aborts_and_preemptions(
    policy: type[Scheduler], seed: int
) -> None:
    rng = random.Random(seed)
    scheduler = policy(Limits(40, 30, 60, block_size=4), seed=seed)
    batch = InputBatch(block_size=4)
    requests: dict[str, Request] = {}
    num_preempted = 0
    for step in range(250):
        if rng.random() < 0.4:
            name = f"request-{rng.randrange(40)}"
            if name not in requests:
                prompt = [rng.randrange(5) for _ in range(rng.choice([1, 4, 9, 60, 180]))]
                requests[name] = Request(
                    name, float(step), prompt, max_tokens=rng.randrange(1, 40), priority=rng.randrange(3)
                )
                scheduler.add_request(requests[name])
        if requests and rng.random() < 0.05:
            name = rng.choice(list(requests))
            scheduler.abort_request(name, float(step))
            del requests[name]
        output = scheduler.schedule(float(step))
        num_preempted += len(output.preempted_ids)
        batch.update(output)
        if not output.num_scheduled_tokens:
            continue
        flat = batch.flatten(output)
        check(flat, output, requests, 4)
        sampled = np.array([rng.randrange(5) for _ in flat.samples], np.int64)
        batch.advance(flat, sampled)
        tokens = {flat.request_ids[i]: [token] for i, token in zip(flat.samples, sampled.tolist(), strict=True)}
        for request in scheduler.update_from_output(output, StepResult(tokens), float(step)).finished:
            del requests[request.request_id]
    assert num_preempted > 0
    for name in list(requests):
        scheduler.abort_request(name, 0.0)
    batch.update(scheduler.schedule(0.0))
    assert len(batch) == 0


def test_arrays_grow_without_losing_what_they_hold() -> None:
    batch = InputBatch(block_size=2)
    prompts = {f"{index}": list(range(index, index + 40 * (index + 1))) for index in range(20)}
    for name, prompt in prompts.items():
        blocks = list(range(len(prompt) // 2))
        batch.update(step_of(new_requests=[NewRequest(name, prompt, None, blocks, 0)]))
    counts = {name: len(prompt) for name, prompt in prompts.items()}
    flat = batch.flatten(step_of(num_scheduled_tokens=counts, sampled_ids=list(counts)))
    assert flat.token_ids.tolist() == [token for prompt in prompts.values() for token in prompt]
    assert flat.slots.tolist() == [place for prompt in prompts.values() for place in range(len(prompt))]


def test_a_preempted_request_keeps_its_tokens_and_gets_a_new_block_table() -> None:
    batch = InputBatch(block_size=4)
    batch.update(step_of(new_requests=[NewRequest("a", [7, 8, 9], None, [5], 0)]))
    flat = batch.flatten(step_of(num_scheduled_tokens={"a": 3}, sampled_ids=["a"]))
    batch.advance(flat, np.array([6]))
    batch.update(step_of(preempted_ids=["a"]))
    batch.update(step_of(resumed_requests=[ResumedRequest("a", [2], 0)]))
    flat = batch.flatten(step_of(num_scheduled_tokens={"a": 4}, sampled_ids=["a"]))
    assert flat.token_ids.tolist() == [7, 8, 9, 6]
    assert flat.slots.tolist() == [8, 9, 10, 11]


def test_a_new_request_that_is_known_already_is_refused_by_name() -> None:
    batch = InputBatch(block_size=4)
    new = NewRequest("a", [7], None, [0], 0)
    batch.update(step_of(new_requests=[new]))
    with pytest.raises(SchedulerError, match="'a' is new"):
        batch.update(step_of(new_requests=[new]))


def test_a_simulated_prompt_without_tokens_is_refused_by_name() -> None:
    with pytest.raises(SchedulerError, match="'a' has no prompt tokens"):
        InputBatch(block_size=4).update(step_of(new_requests=[NewRequest("a", None, None, [0], 0)]))


def test_preparing_a_batch_of_32_decodes_costs_a_fraction_of_a_millisecond() -> None:
    scheduler = ChunkedPrefill(Limits(4096, 32, 1000))
    batch = InputBatch(block_size=16)
    for index in range(32):
        scheduler.add_request(Request(str(index), 0.0, list(range(100)), max_tokens=150))
    best_s = 1.0
    for _ in range(120):
        output = scheduler.schedule(0.0)
        started = time.perf_counter()
        batch.update(output)
        flat = batch.flatten(output)
        batch.advance(flat, np.zeros(len(flat.samples), np.int64))
        best_s = min(best_s, time.perf_counter() - started)
        scheduler.update_from_output(output, StepResult({name: [0] for name in output.sampled_ids}), 0.0)
    assert best_s < 0.3e-3
