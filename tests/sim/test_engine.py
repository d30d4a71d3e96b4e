"""The simulated engine: what happens when, to the exact second."""

from __future__ import annotations

import random
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest
import simpy

from schedulers import (
    FCFS,
    BatchShape,
    ChunkedPrefill,
    InputError,
    Limits,
    Priority,
    Request,
    RequestRecord,
    RequestRefused,
    Scheduler,
    SchedulerContract,
    SchedulerError,
    SchedulerOutput,
    Static,
    StepRecord,
)
from schedulers.batch import Batch
from sim.engine import SimEngine, arrive, simulate
from sim.tokens import EOS, TokenSource

LIMITS = Limits(token_budget=64, max_num_seqs=4, num_blocks=64, block_size=16)
POLICIES = (ChunkedPrefill, FCFS, Priority, Static)


class Constant:
    """Every step takes as long; by default exactly one second."""

    def __init__(self, step_s: float = 1.0) -> None:
        self.step_s = step_s

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        assert batch.num_tokens > 0
        return self.step_s

    def warnings(self) -> list[str]:
        return []

    def describe(self) -> str:
        return "constant"


class World:
    """An environment with one engine, and what it recorded."""

    def __init__(
        self,
        scheduler: SchedulerContract | None = None,
        env: simpy.Environment | None = None,
        step_s: float = 1.0,
    ) -> None:
        self.env = env or simpy.Environment()
        self.steps: list[StepRecord] = []
        self.records: dict[str, RequestRecord] = {}
        self.scheduler = scheduler or ChunkedPrefill(LIMITS)
        self.engine = SimEngine(
            self.env, self.scheduler, Constant(step_s), TokenSource(), self.steps.append, self._finished
        )

    def _finished(self, record: RequestRecord) -> None:
        assert record.request_id not in self.records or record.finish_s > self.records[record.request_id].finish_s
        self.records[record.request_id] = record

    def submit(self, name: str = "r0", num_output_tokens: int = 3, **fields: Any) -> Request:
        """A request arrives now."""
        fields = {"num_prompt_tokens": 10, "eos_token_id": EOS, **fields}
        request = Request(name, self.env.now, **fields)
        self.engine.submit(request, num_output_tokens)
        return request

    def at(self, time: float, act: Any, *args: Any, **fields: Any) -> None:
        """Do something at this time."""

        def process() -> Generator[simpy.Event, None, None]:
            yield self.env.timeout(time - self.env.now)
            act(*args, **fields)

        self.env.process(process())

    def spans(self) -> list[tuple[float, float]]:
        """Start and end of each step."""
        return [(step.start_s, step.end_s) for step in self.steps]


# -- exact times -------------------------------------------------------------------------------------------------------


def test_a_request_alone_gets_a_token_at_the_end_of_each_step() -> None:
    world = World(step_s=0.5)
    world.submit("r0", 3)
    world.env.run()
    record = world.records["r0"]
    assert (record.arrival_s, record.first_scheduled_s, record.finish_s) == (0.0, 0.0, 1.5)
    assert record.token_times_s == (0.5, 1.0, 1.5)
    assert (record.finish_reason, record.num_output_tokens, record.num_prompt_tokens) == ("stop", 3, 10)
    assert world.spans() == [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)]
    assert [(step.num_prefill_tokens, step.num_decode_tokens) for step in world.steps] == [(10, 0), (0, 1), (0, 1)]


def test_a_step_record_tells_what_was_running_waiting_and_used_when_the_step_started() -> None:
    world = World(ChunkedPrefill(Limits(token_budget=64, max_num_seqs=1, num_blocks=8, block_size=16)))
    world.submit("r0", 2, num_prompt_tokens=16)
    world.submit("r1", 1, num_prompt_tokens=16)
    world.env.run()
    told = [(step.step, step.num_running, step.num_waiting, step.kv_usage, step.num_prefills) for step in world.steps]
    assert told == [(1, 1, 1, 0.125, 1), (2, 1, 1, 0.25, 0), (3, 1, 0, 0.125, 1)]


def test_preemptions_show_in_the_records_of_steps_and_requests() -> None:
    world = World(ChunkedPrefill(Limits(token_budget=64, max_num_seqs=4, num_blocks=4, block_size=4)))
    for i in range(3):
        world.submit(f"r{i}", 8, num_prompt_tokens=4)
    world.env.run()
    by_step = sum(step.num_preemptions for step in world.steps)
    assert by_step == sum(record.num_preemptions for record in world.records.values()) > 0


def test_the_price_of_a_step_is_asked_of_its_batch_alone() -> None:
    shapes = []

    class Watching(Constant):
        def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
            shapes.append((batch.prefills.copy(), batch.decode_contexts.copy(), batch.num_sampled))
            return 0.25 * batch.num_tokens

    records: list[RequestRecord] = []
    arrivals = [(Request("r0", 2.0, num_prompt_tokens=100, eos_token_id=EOS), 2)]
    simulate(arrivals, ChunkedPrefill(LIMITS), Watching(), lambda _: None, records.append)
    assert shapes == [([(64, 0)], [], 0), ([(36, 64)], [], 1), ([], [100], 1)]
    assert records[0].token_times_s == (2.0 + 25.0, 2.0 + 25.25)


# -- idle and busy -----------------------------------------------------------------------------------------------------


def test_an_idle_engine_sleeps_until_a_request_arrives_and_starts_at_once() -> None:
    world = World()
    world.at(10.25, world.submit, "r0", 2)
    world.at(100.5, world.submit, "r1", 1)
    world.env.run()
    assert world.spans() == [(10.25, 11.25), (11.25, 12.25), (100.5, 101.5)]


def test_an_engine_without_requests_takes_no_step_and_lets_the_simulation_end() -> None:
    world = World()
    world.env.run()
    assert world.steps == []
    assert world.env.now == 0.0


def test_a_request_that_arrives_during_a_step_is_seen_by_the_next() -> None:
    world = World()
    world.submit("r0", 3)
    world.at(0.5, world.submit, "r1", 1)
    world.env.run()
    assert world.records["r1"].first_scheduled_s == 1.0
    assert world.records["r1"].token_times_s == (2.0,)
    assert (world.steps[0].num_waiting, world.steps[1].num_running) == (0, 2)


def test_requests_that_arrive_together_start_together() -> None:
    world = World()
    for i in range(4):
        world.at(1.5, world.submit, f"r{i}", 1)
    world.env.run()
    assert world.spans() == [(1.5, 2.5)]
    assert [record.first_scheduled_s for record in world.records.values()] == [1.5] * 4


@pytest.mark.parametrize("decided_at", [0.0, 1.5])
def test_a_request_that_arrives_at_the_very_end_of_a_step_is_seen_by_the_next_whenever_that_was_decided(
    decided_at: float,
) -> None:
    world = World()
    world.submit("r0", 4)
    # The second step runs from 1 to 2. A client decides before it, or during it, to send a request at 2.
    world.at(decided_at, lambda: world.at(2.0, world.submit, "r1", 1))
    world.env.run()
    assert world.records["r1"].first_scheduled_s == 2.0


def test_arrivals_at_the_ends_of_steps_wait_for_no_further_step() -> None:
    arrivals = [(Request(f"r{i}", float(i), num_prompt_tokens=10, eos_token_id=EOS), 20) for i in range(4)]
    records: list[RequestRecord] = []
    simulate(arrivals, ChunkedPrefill(LIMITS), Constant(), lambda _: None, records.append)
    assert {record.request_id: record.first_scheduled_s for record in records} == {f"r{i}": float(i) for i in range(4)}


def test_no_request_is_scheduled_before_it_arrives_however_times_are_rounded() -> None:
    draws = random.Random(1)
    times = sorted(draws.uniform(0, 100) for _ in range(400))
    arrivals = [(Request(f"r{i}", time, num_prompt_tokens=1, eos_token_id=EOS), 1) for i, time in enumerate(times)]
    records: list[RequestRecord] = []
    simulate(arrivals, ChunkedPrefill(LIMITS), Constant(0.01), lambda _: None, records.append)
    assert len(records) == 400
    for record in records:
        assert record.first_scheduled_s is not None
        assert record.first_scheduled_s >= record.arrival_s


# -- aborts ------------------------------------------------------------------------------------------------------------


def check_empty(world: World) -> None:
    assert world.engine.num_unfinished == world.scheduler.num_running == world.scheduler.num_waiting == 0
    assert world.scheduler.kv_cache.usage == 0.0
    world.scheduler.kv_cache.check_integrity([])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_aborted_while_it_waits_never_runs(policy: type[Scheduler]) -> None:
    world = World(policy(Limits(token_budget=64, max_num_seqs=1, num_blocks=8)))
    world.submit("r0", 3)
    world.submit("r1", 3)
    world.at(0.5, world.engine.abort, "r1")
    world.env.run()
    record = world.records["r1"]
    assert (record.first_scheduled_s, record.finish_s, record.finish_reason) == (None, 0.5, "abort")
    assert world.records["r0"].finish_s == 3.0
    check_empty(world)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("time", [0.5, 1.5, 2.5])
def test_a_request_aborted_in_the_middle_of_a_step_gets_no_token_of_it_and_others_go_on(
    policy: type[Scheduler], time: float
) -> None:
    world = World(policy(LIMITS))
    world.submit("r0", 3)
    world.submit("r1", 5)
    world.at(time, world.engine.abort, "r1")
    world.env.run()
    record = world.records["r1"]
    assert (record.finish_s, record.finish_reason, record.num_output_tokens) == (time, "abort", int(time))
    assert world.records["r0"].token_times_s == (1.0, 2.0, 3.0)
    check_empty(world)


def test_a_request_aborted_in_the_middle_of_its_prompt_gets_no_token() -> None:
    world = World()
    world.submit("r0", 3, num_prompt_tokens=200)
    world.at(1.5, world.engine.abort, "r0")
    world.env.run()
    assert world.records["r0"].num_output_tokens == 0
    assert world.spans() == [(0.0, 1.0), (1.0, 2.0)]
    check_empty(world)


def test_a_preempted_request_can_be_aborted() -> None:
    world = World(Priority(Limits(token_budget=64, max_num_seqs=1, num_blocks=8)))
    world.submit("r0", 5, priority=5)
    world.at(1.5, world.submit, "r1", 4)
    world.at(3.5, world.engine.abort, "r0")
    world.env.run()
    record = world.records["r0"]
    assert (record.num_output_tokens, record.num_preemptions, record.finish_reason) == (2, 1, "abort")
    assert world.records["r1"].token_times_s == (3.0, 4.0, 5.0, 6.0)
    check_empty(world)


def test_the_id_of_an_aborted_request_can_be_used_again_in_the_same_step_and_has_its_own_length() -> None:
    world = World()
    world.submit("r0", 5)
    world.at(1.5, world.engine.abort, "r0")
    world.at(1.5, world.submit, "r0", 2)
    world.env.run()
    assert world.records["r0"].token_times_s == (3.0, 4.0)
    check_empty(world)


def test_a_request_aborted_in_the_instant_it_arrives_leaves_the_engine_asleep() -> None:
    world = World()
    world.at(1.0, world.submit, "r0", 3)
    world.at(1.0, world.engine.abort, "r0")
    world.at(5.0, world.submit, "r1", 1)
    world.env.run()
    assert world.spans() == [(5.0, 6.0)]
    assert world.records["r0"].finish_reason == "abort"


def test_aborting_what_has_ended_or_never_was_does_nothing() -> None:
    world = World()
    world.submit("r0", 1)
    world.at(2.0, world.engine.abort, "r0")
    world.at(2.0, world.engine.abort, "nobody")
    world.env.run()
    assert world.records["r0"].finish_reason == "stop"


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_refused_request_leaves_nothing_behind_and_others_go_on() -> None:
    world = World()
    world.submit("r0", 2)
    with pytest.raises(RequestRefused, match="'big'"):
        world.submit("big", 2, num_prompt_tokens=10_000)
    with pytest.raises(RequestRefused, match="already being served"):
        world.submit("r0", 9)
    with pytest.raises(InputError, match=r"'empty'.*at least 1"):
        world.submit("empty", 0)
    assert world.engine.num_unfinished == world.scheduler.num_waiting == 1
    world.env.run()
    assert list(world.records) == ["r0"]
    assert world.records["r0"].num_output_tokens == 2


# -- schedulers that fail ----------------------------------------------------------------------------------------------


class Idle(Scheduler):
    """Schedules nobody from its third step on."""

    def compose(self, batch: Batch, now: float) -> None:
        if batch.step < 3:
            super().compose(batch, now)


def test_a_step_that_schedules_nothing_while_requests_wait_is_an_error_that_names_them() -> None:
    world = World(Idle(LIMITS))
    world.submit("r0", 2)
    world.submit("r1", 9)
    with pytest.raises(SchedulerError, match=r"step 3: Idle .*nothing.*'r1'"):
        world.env.run()
    assert len(world.steps) == 2
    assert list(world.records) == ["r0"]


class Broken:
    """Implements the contract by another scheduler, and fails in one way."""

    def __init__(self, fault: str) -> None:
        self._scheduler = ChunkedPrefill(LIMITS)
        self._fault = fault
        self.limits, self.kv_cache = LIMITS, self._scheduler.kv_cache

    def __getattr__(self, name: str) -> Any:
        if name == self._fault:

            def fail(*_: Any) -> None:
                raise KeyError("a bug of its own")

            return fail
        return getattr(self._scheduler, name)

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    def schedule(self, now: float) -> SchedulerOutput:
        if self._fault == "schedule":
            raise KeyError("a bug of its own")
        output = self._scheduler.schedule(now)
        if self._fault == "stranger":
            output.num_scheduled_tokens["stranger"] = 1
            output.sampled_ids.append("stranger")
        return output


@pytest.mark.parametrize("fault", ["schedule", "update_from_output"])
def test_a_scheduler_of_the_contract_alone_that_raises_ends_in_one_error_that_names_it(fault: str) -> None:
    world = World(Broken(fault))
    world.submit("r0", 2)
    with pytest.raises(SchedulerError, match="Broken raised KeyError: 'a bug of its own'"):
        world.env.run()


def test_a_scheduler_of_the_contract_alone_that_schedules_a_stranger_ends_in_one_error_that_names_both() -> None:
    world = World(Broken("stranger"))
    world.submit("r0", 2)
    with pytest.raises(SchedulerError, match=r"step 1: Broken .*'stranger'"):
        world.env.run()


# -- several engines, whole workloads ----------------------------------------------------------------------------------


def test_two_engines_live_in_one_environment_without_seeing_each_other() -> None:
    env = simpy.Environment()
    fast, slow = World(env=env, step_s=0.5), World(env=env, step_s=2.0)
    for world in (fast, slow):
        world.submit("r0", 3)
    env.run()
    assert fast.records["r0"].token_times_s == (0.5, 1.0, 1.5)
    assert slow.records["r0"].token_times_s == (2.0, 4.0, 6.0)


def workload(seed: int, number: int = 120) -> list[tuple[Request, int]]:
    draws = random.Random(seed)
    time, arrivals = 0.0, []
    for i in range(number):
        time += draws.expovariate(1.0)
        request = Request(
            f"r{i}",
            time,
            num_prompt_tokens=draws.randint(1, 200),
            max_tokens=draws.choice([None, 5, 50]),
            eos_token_id=EOS,
            priority=draws.randrange(3),
        )
        arrivals.append((request, draws.randint(1, 60)))
    return arrivals


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_of_a_workload_gets_its_true_length_or_its_cap_under_memory_pressure(
    policy: type[Scheduler],
) -> None:
    arrivals = workload(3)
    records: list[RequestRecord] = []
    steps: list[StepRecord] = []
    limits = Limits(token_budget=64, max_num_seqs=8, num_blocks=20, block_size=16)
    engine = simulate(arrivals, policy(limits), Constant(0.05), steps.append, records.append)
    assert engine.num_unfinished == 0
    lengths = {record.request_id: record.num_output_tokens for record in records}
    expected = {
        request.request_id: min(
            length, request.max_tokens or length, limits.max_request_tokens - request.num_prompt_tokens
        )
        for request, length in arrivals
    }
    assert lengths == expected
    assert all(first.end_s <= second.start_s for first, second in pairwise(steps))
    for record in records:
        assert record.first_scheduled_s is not None
        assert record.arrival_s <= record.first_scheduled_s < record.token_times_s[0]
        assert record.token_times_s[-1] == record.finish_s
        assert list(record.token_times_s) == sorted(set(record.token_times_s))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_workload_gives_the_same_records(policy: type[Scheduler]) -> None:
    def run() -> tuple[list[StepRecord], list[RequestRecord]]:
        steps: list[StepRecord] = []
        records: list[RequestRecord] = []
        limits = Limits(token_budget=64, max_num_seqs=8, num_blocks=20, block_size=16)
        simulate(workload(5), policy(limits), Constant(0.05), steps.append, records.append)
        return steps, records

    assert run() == run()


@pytest.mark.parametrize("policy", POLICIES)
def test_little_s_law_holds_mean_number_in_system_is_arrival_rate_times_mean_time_in_system(
    policy: type[Scheduler],
) -> None:
    env = simpy.Environment()
    records: list[RequestRecord] = []
    engine = SimEngine(env, policy(LIMITS), Constant(0.05), TokenSource(), lambda _: None, records.append)
    env.process(arrive(engine, workload(7)))
    area = 0.0
    while (time := env.peek()) < float("inf"):
        area += engine.num_unfinished * (time - env.now)
        env.step()
    assert len(records) == 120
    assert area == pytest.approx(sum(record.finish_s - record.arrival_s for record in records))
