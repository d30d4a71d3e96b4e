"""Requests of which nobody knows the content are decided on as if every token of theirs were unlike any other's."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest

from schedulers import SLO, Limits, Orca, Request, Reserving, Scheduler, SchedulerOutput, StepResult
from tests.schedulers.builders import ALL_POLICIES, create_scheduler, run_step, run_to_end
from tests.schedulers.chaotic import Chaotic, Displacing
from tests.schedulers.snapshots import snapshot_free

#: What some prompts begin with; a block of it is named by its place.
SYSTEM = range(12)


class Pair(NamedTuple):
    """The same request twice: as an engine gets it, and as a simulation that knows at most its system prompt."""

    arrives: int
    aborted: int | None
    told: Request
    untold: Request


def draw_pair(chance: random.Random, number: int, tokens: count[int], limits: Limits) -> Pair:
    """Request `number`, its own tokens taken from `tokens`."""
    longest = min(limits.max_request_tokens, 30)
    num_prompt = chance.randint(1, longest - 1)
    system = SYSTEM[: chance.choice([0, 0, chance.randint(0, num_prompt)])]
    prompt = [*system, *(next(tokens) for _ in range(num_prompt - len(system)))]
    arrives = chance.randint(0, 40)
    fields: dict[str, Any] = {
        "max_tokens": chance.randint(1, longest - num_prompt),
        "priority": chance.randint(0, 2),
        "client_id": chance.choice(["ann", "bob"]),
        "slo": SLO(ttft_s=chance.choice([2.0, 20.0])),
        "predicted_output_tokens": chance.choice([1.0, 4.0, 9.5]),
        "cache_salt": chance.choice(["", "", "salt"]),
        "prompt_logprobs": chance.random() < 0.1,
    }
    known: dict[str, Any] = {
        "num_prompt_tokens": num_prompt,
        "prompt_block_hashes": range(len(system) // limits.block_size),
        "content_id": chance.choice(["", "", "", f"r{number}"]),
    }
    return Pair(
        arrives,
        arrives + chance.randint(0, 30) if chance.random() < 0.1 else None,
        Request(f"r{number}", float(arrives), prompt, **fields),
        Request(f"r{number}", float(arrives), **known, **fields),
    )


def decisions(output: SchedulerOutput) -> SchedulerOutput:
    """All that a step decided, blocks included, without the prompts."""
    return replace(output, new_requests=[replace(new, prompt_token_ids=None) for new in output.new_requests])


def tokens_found_again(policy: type[Scheduler], seed: int) -> int:
    """Let one drawn workload happen to both, in lockstep; tokens that those found who came back from preemption."""
    chance = random.Random(seed)
    tokens = count(1000)
    limits = Limits(
        token_budget=chance.choice([3, 8, 30]),
        max_num_seqs=chance.randint(2, 6),
        num_blocks=chance.randint(8, 20),
        block_size=chance.randint(1, 4),
    )
    pairs = [draw_pair(chance, number, tokens, limits) for number in range(16)]
    steps_ahead = chance.randint(0, 1)
    told, untold = policy(limits, seed=seed), policy(limits, seed=seed)
    in_flight: deque[tuple[SchedulerOutput, SchedulerOutput]] = deque()
    for step in range(300):
        now = float(step)
        for pair in pairs:
            if pair.arrives == step:
                told.add_request(pair.told)
                untold.add_request(pair.untold)
            if pair.aborted == step:
                told.abort_request(pair.told.request_id, now)
                untold.abort_request(pair.untold.request_id, now)
        outputs = told.schedule(now), untold.schedule(now)
        assert decisions(outputs[0]) == decisions(outputs[1]), f"seed {seed}, step {step + 1}"
        assert snapshot_free(told.kv_cache) == snapshot_free(untold.kv_cache)
        untold.kv_cache.check_integrity(untold.live.values())
        in_flight.append(outputs)
        if len(in_flight) > steps_ahead:
            outputs = in_flight.popleft()
            result = StepResult({request_id: [next(tokens)] for request_id in outputs[0].sampled_ids})
            for scheduler, output in zip((told, untold), outputs, strict=True):
                scheduler.update_from_output(output, result, now)
    for pair in pairs:
        same = (pair.told.num_preemptions, pair.told.num_cached_tokens, pair.told.num_recached_tokens)
        assert same == (pair.untold.num_preemptions, pair.untold.num_cached_tokens, pair.untold.num_recached_tokens)
    return told.kv_cache.num_rehit_tokens


@pytest.mark.parametrize("policy", [*ALL_POLICIES, Chaotic, Displacing])
def test_decisions_are_those_for_tokens_that_nobody_else_has(policy: type[Scheduler]) -> None:
    found = sum(tokens_found_again(policy, seed) for seed in range(30))
    assert found > 0 or policy in (Reserving, Orca)  # which preempt nobody


def test_a_request_gets_names_when_it_is_preempted_and_nobody_else_finds_what_they_name() -> None:
    scheduler = create_scheduler(Displacing, num_blocks=12, block_size=4, max_num_seqs=1)
    one = Request("one", 0.0, num_prompt_tokens=12, max_tokens=2, priority=5)
    scheduler.add_request(one)
    run_step(scheduler)
    assert one.block_hashes == []
    scheduler.add_request(Request("urgent", 1.0, num_prompt_tokens=12, max_tokens=1))
    run_step(scheduler)
    assert len(one.block_hashes) == 3
    again = Request("one", 2.0, num_prompt_tokens=13)
    named_alike = Request("other", 2.0, num_prompt_tokens=13, content_id="one")
    found = [scheduler.kv_cache.num_cached_tokens(request) for request in (one, again, named_alike)]
    assert found == [12, 0, 0]
    assert run_to_end(scheduler) == [{"one": 1}]
