"""Every invariant, over every policy, in situations nobody thought of.

`CheckedWorld` checks them all at every call; Hypothesis decides what happens. The caches are tiny, prompts share
prefixes, and the vocabulary is small, so that requests run out of blocks, find, evict and displace all the time.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from schedulers import (
    FCFS,
    LPM,
    MLFQ,
    SJF,
    SLO,
    SRPT,
    VTC,
    ChunkedPrefill,
    InputError,
    Limits,
    Priority,
    Request,
    Reserving,
    Scheduler,
    Static,
)
from schedulers.conformance.worker_mirror import VOCABULARY
from schedulers.conformance.world import CheckedWorld
from schedulers.predictors import PREDICTORS
from schedulers.victims import RULES
from tests.schedulers.builders import ALL_POLICIES
from tests.schedulers.chaotic import Chaotic, Displacing
from tests.schedulers.snapshots import snapshot, snapshot_cache

POLICIES = (*ALL_POLICIES, Displacing, Chaotic)
#: Between them, these do all that the mechanism can.
THOROUGHLY = (ChunkedPrefill, FCFS, Priority, Static, Displacing, Chaotic)
ROOT = Path(__file__).resolve().parents[2]

#: Every prompt is the start of one of these, perhaps with another last token.
CONVERSATIONS = ([0] * 40, [0, 1] * 20, [0] * 8 + [1] * 8 + [2] * 24)

limits_of_a_tiny_engine = st.builds(
    Limits,
    token_budget=st.sampled_from([1, 3, 5, 8, 13, 30]),
    max_num_seqs=st.integers(1, 6),
    num_blocks=st.sampled_from([2, 3, 5, 8, 12, 20]),
    block_size=st.integers(1, 4),
    max_model_len=st.sampled_from([9, 30, 1000]),
    prefix_caching=st.sampled_from([True, True, True, False]),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    """A true prompt, and the fields of a request for it."""
    prompt = draw(st.sampled_from(CONVERSATIONS))[: draw(st.integers(1, 20))]
    if draw(st.booleans()):
        prompt = [*prompt[:-1], draw(st.integers(0, VOCABULARY - 1))]
    max_tokens = draw(st.none() | st.integers(1, 12))
    fields = {
        "max_tokens": max_tokens,
        "min_tokens": draw(st.integers(0, max_tokens or 4)),
        "priority": draw(st.integers(0, 2)),
        "cache_salt": draw(st.sampled_from(["", "", "salt"])),
        "prompt_logprobs": draw(st.integers(0, 7)) == 0,
        "eos_token_id": draw(st.sampled_from([None, 0])),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": draw(st.sampled_from([(), (5,)])),
        "client_id": draw(st.sampled_from(["a", "b", "c"])),
        "slo": draw(st.sampled_from([None, SLO(2.0, 0.5), SLO(9.0)])),
        "predicted_output_tokens": draw(st.integers(0, 12)),
    }
    return prompt, fields


def create_request(
    name: str, now: float, prompt: list[int], fields: dict[str, Any], *, named_blocks_of: int
) -> Request:
    """A request with tokens, or, as traces have them, with a number of tokens and the names of its full blocks."""
    if not named_blocks_of:
        return Request(name, now, prompt, **fields)
    ends = range(named_blocks_of, len(prompt) + 1, named_blocks_of)
    names = [tuple(prompt[:end]) for end in ends]
    return Request(name, now, num_prompt_tokens=len(prompt), prompt_block_hashes=names, **fields)


class Machine(RuleBasedStateMachine):
    """Anything that can happen to a scheduler, in any order."""

    policy: type[Scheduler]

    @initialize(
        limits=limits_of_a_tiny_engine,
        seed=st.integers(0, 1000),
        depth=st.sampled_from([1, 1, 2, 3]),
        most_sampled=st.sampled_from([1, 1, 3]),
        option=st.integers(0, 3),
    )
    def start(self, limits: Limits, seed: int, depth: int, most_sampled: int, option: int) -> None:
        options: dict[str, Any] = {}
        if issubclass(self.policy, ChunkedPrefill):
            options["max_chunk"] = (None, 1, 2, 5)[option]
            options["victim_rule"] = [*RULES, *RULES][option]
        if issubclass(self.policy, SJF | SRPT):
            options["predictor"] = [*PREDICTORS, *PREDICTORS][option]
        options |= {
            FCFS: {"watermark": (0.0, 0.01, 0.2, 0.6)[option]},
            MLFQ: {
                "quantum_tokens": option + 1,
                "prompt_tokens_per_token": 4,
                "promote_after_s": (None, 3, 9, 30)[option],
            },
            VTC: {"client_weights": (None, {"a": 3}, {"b": 0.1}, {})[option]},
            LPM: {"patience_s": (None, 3, 9, 30)[option], "most_compared": option + 1},
            Reserving: {"output_share": option / 3, "memory_share": (1, 0.6, 1.5, 1)[option]},
        }.get(self.policy, {})
        self.scheduler = self.policy(limits, seed=seed, **options)
        self.world = CheckedWorld(self.scheduler, makes_progress=self.policy is not Chaotic)
        self.depth = depth
        self.random = random.Random(seed)
        self.most_sampled = most_sampled
        self.num_requests = 0

    @rule(described=requests(), named=st.sampled_from([False, False, True]))
    def a_request_arrives(self, described: tuple[list[int], dict[str, Any]], *, named: bool) -> None:
        prompt, fields = described
        block_size = self.scheduler.limits.block_size if named else 0
        request = create_request(f"r{self.num_requests}", self.world.now, prompt, fields, named_blocks_of=block_size)
        self.num_requests += self.world.arrive(request, prompt)

    @precondition(lambda self: self.world.live)
    @rule(described=requests(), which=st.integers(0, 99))
    def an_id_is_used_again(self, described: tuple[list[int], dict[str, Any]], which: int) -> None:
        live = list(self.world.live)
        name = live[which % len(live)]
        again = create_request(name, self.world.now, *described, named_blocks_of=0)
        assert not self.world.arrive(again)
        self.world.abort(name)
        self.world.arrive(again)

    @precondition(lambda self: self.world.live and len(self.world.in_flight) < self.depth)
    @rule()
    def a_step_starts(self) -> None:
        self.world.dispatch(lambda _: self.random.randint(1, self.most_sampled))
        if self.depth == 1:
            self.world.learn()

    @precondition(lambda self: self.world.live and not self.world.in_flight)
    @rule(num_steps=st.integers(2, 6))
    def steps_are_run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.world.dispatch(lambda _: self.random.randint(1, self.most_sampled))
            self.world.learn()
            if not self.world.live:
                break

    @precondition(lambda self: self.world.in_flight)
    @rule()
    def a_step_ends(self) -> None:
        self.world.learn()

    @precondition(lambda self: self.world.live)
    @rule(which=st.integers(0, 99))
    def a_client_cancels(self, which: int) -> None:
        live = list(self.world.live)
        self.world.abort(live[which % len(live)])

    @rule()
    def an_allocation_fails(self) -> None:
        cache = self.scheduler.kv_cache
        for request in self.scheduler.running:
            before = snapshot_cache(cache), request.block_ids.copy(), request.block_capacity
            assert not cache.allocate(request, request.block_capacity + cache.num_free_blocks * cache.block_size + 1)
            assert (snapshot_cache(cache), request.block_ids, request.block_capacity) == before

    @rule()
    def the_cache_is_reset(self) -> None:
        before = snapshot(self.scheduler)
        if self.scheduler.num_running:
            with pytest.raises(InputError, match="cannot be reset"):
                self.scheduler.kv_cache.reset()
            assert snapshot(self.scheduler) == before
        else:
            assume(self.scheduler.kv_cache.num_lookup_tokens)
            self.scheduler.kv_cache.reset()
        self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        while self.world.in_flight:
            self.world.learn()
        if isinstance(self.scheduler, Chaotic):
            self.scheduler.calm = True
        self.world.run_to_end()


@pytest.mark.parametrize("policy", POLICIES)
def test_every_invariant_holds_whatever_happens(policy: type[Scheduler]) -> None:
    machine = type(policy.__name__, (Machine,), {"policy": policy})
    profile = settings(
        max_examples=int(os.environ.get("TWINSERVE_EXAMPLES", "120" if policy in THOROUGHLY else "40")),
        stateful_step_count=40,
        derandomize="TWINSERVE_EXAMPLES" not in os.environ,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=profile)


# -- same inputs, same decisions ---------------------------------------------------------------------------------------


def decisions(policy: type[Scheduler], seed: int) -> str:
    """A digest of all that a scheduler decides in a random scenario of this seed."""
    draws = random.Random(seed)
    limits = Limits(token_budget=13, max_num_seqs=6, num_blocks=12, block_size=3, max_model_len=30)
    scheduler = policy(limits, seed=seed)
    world = CheckedWorld(scheduler, makes_progress=policy is not Chaotic)
    digest = hashlib.sha256()
    for number in range(300):
        prompt = draws.choice(CONVERSATIONS)[: draws.randint(1, 20)]
        fields = {
            "priority": draws.randrange(3),
            "max_tokens": draws.randint(1, 9),
            "stop_token_ids": range(3, 6),
            "client_id": draws.choice("abc"),
            "predicted_output_tokens": draws.randint(1, 9),
            "slo": SLO(draws.choice([3.0, 30.0]), 1.0),
        }
        world.arrive(create_request(f"r{number}", world.now, prompt, fields, named_blocks_of=0))
        if draws.random() < 0.1 and world.live:
            world.abort(draws.choice(list(world.live)))
        digest.update(repr(world.dispatch()).encode())
        world.learn()
    digest.update(repr([repr(request) for request in world.finished]).encode())
    return digest.hexdigest()


def all_decisions() -> list[str]:
    """One line a policy."""
    return [f"{policy.__name__} {decisions(policy, seed=7)}" for policy in POLICIES]


def test_the_same_inputs_give_the_same_decisions_in_processes_with_other_hash_seeds() -> None:
    command = [sys.executable, "-c", f"from {__name__} import all_decisions; print('\\n'.join(all_decisions()))"]
    results: list[Sequence[str]] = [all_decisions()]
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        results.append(done.stdout.split("\n")[:-1])
    assert results[0] == results[1] == results[2]
    assert len(set(results[0])) == len(POLICIES)
