"""Clusters and routers: who is sent where, and that nothing is lost on the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
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
    SchedulerError,
    Static,
    StepRecord,
)
from sim.cluster import Cluster, simulate_cluster
from sim.engine import SimEngine, simulate
from sim.routing import CentralQueue, LeastKVUsage, LeastOutstanding, PrefixAffinity, Random, RoundRobin, Router
from sim.tokens import EOS

LIMITS = Limits(token_budget=64, max_num_seqs=2, num_blocks=64, block_size=16)
ROUTERS = (RoundRobin, Random, LeastOutstanding, LeastKVUsage, PrefixAffinity, CentralQueue)


class Constant:
    """Every step takes a second."""

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        return 1.0

    def warnings(self) -> list[str]:
        return []

    def describe(self) -> str:
        return "constant"


def request(name: str, arrival_s: float = 0.0, **fields: Any) -> Request:
    return Request(name, arrival_s, **{"num_prompt_tokens": 10, "eos_token_id": EOS, **fields})


def run(
    arrivals: Sequence[tuple[Request, int]], router: Router, replicas: int = 3, limits: Limits = LIMITS
) -> tuple[list[StepRecord], dict[str, RequestRecord]]:
    steps: list[StepRecord] = []
    records: list[RequestRecord] = []
    schedulers = [ChunkedPrefill(limits) for _ in range(replicas)]
    simulate_cluster(arrivals, schedulers, router, Constant(), steps.append, records.append)
    return steps, {record.request_id: record for record in records}


def burst(count: int, arrival_s: float = 0.0, output: int = 3, **fields: Any) -> list[tuple[Request, int]]:
    return [(request(f"r{i}-{arrival_s:g}", arrival_s, **fields), output) for i in range(count)]


# -- the cluster -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("policy", [ChunkedPrefill, FCFS, Priority, Static])
def test_every_request_is_served_once_whoever_routes_and_whoever_schedules(
    router: type[Router], policy: type[ChunkedPrefill]
) -> None:
    arrivals = [(request(f"r{i}", i * 0.7, priority=i % 3), 1 + i % 5) for i in range(40)]
    records: list[RequestRecord] = []
    schedulers = [policy(LIMITS) for _ in range(3)]
    cluster = simulate_cluster(arrivals, schedulers, router(), Constant(), lambda _: None, records.append)
    assert Counter(record.request_id for record in records) == Counter(f"r{i}" for i in range(40))
    assert all(record.num_output_tokens == 1 + int(record.request_id[1:]) % 5 for record in records)
    assert {record.replica for record in records} <= {0, 1, 2}
    assert all(engine.num_unfinished == 0 for engine in cluster.engines)
    for scheduler in schedulers:
        scheduler.kv_cache.check_integrity([])


def test_one_engine_behind_a_router_does_what_it_does_alone() -> None:
    def arrivals() -> list[tuple[Request, int]]:
        return [(request(f"r{i}", i * 0.4), 1 + i % 7) for i in range(30)]

    alone: tuple[list[StepRecord], list[RequestRecord]] = ([], [])
    routed: tuple[list[StepRecord], list[RequestRecord]] = ([], [])
    simulate(arrivals(), ChunkedPrefill(LIMITS), Constant(), alone[0].append, alone[1].append)
    simulate_cluster(arrivals(), [ChunkedPrefill(LIMITS)], RoundRobin(), Constant(), routed[0].append, routed[1].append)
    assert alone == routed


def test_engines_take_their_steps_apart_each_with_a_clock_of_its_own() -> None:
    steps, records = run([(request("a", 0.0), 2), (request("b", 0.5), 2)], RoundRobin(), 2)
    assert [(step.replica, step.start_s, step.end_s) for step in steps] == [
        (0, 0.0, 1.0), (1, 0.5, 1.5), (0, 1.0, 2.0), (1, 1.5, 2.5),
    ]  # fmt: skip
    assert (records["a"].replica, records["b"].replica) == (0, 1)


def test_a_request_that_no_engine_can_ever_serve_is_refused() -> None:
    with pytest.raises(RequestRefused, match="the whole KV cache of 1024 tokens"):
        run([(request("r", num_prompt_tokens=5000), 1)], CentralQueue())


def test_the_time_in_the_system_is_counted_from_arrival_to_end_even_while_the_router_holds() -> None:
    steps, records = run(burst(9), CentralQueue())
    in_system = sum(record.finish_s - record.arrival_s for record in records.values())
    assert sum(step.request_s for step in steps) == pytest.approx(in_system)
    assert in_system == 6 * 3 + 3 * 6


class Sends:
    """A router that always says the same."""

    def __init__(self, where: Any) -> None:
        self.where = where

    def route(self, request: Request, engines: Sequence[SimEngine]) -> Any:
        return self.where


@pytest.mark.parametrize("where", [3, -1, "0", 1.5])
def test_a_router_that_names_no_engine_is_named_with_the_request(where: Any) -> None:
    with pytest.raises(SchedulerError, match=r"Sends routes request 'r0-0' to engine .*from 0 to 2"):
        run(burst(1), Sends(where))


def test_a_router_that_holds_requests_for_ever_is_an_error_and_no_endless_run() -> None:
    with pytest.raises(SchedulerError, match="Sends holds 4 requests"):
        run(burst(4), Sends(None))


def test_a_router_that_raises_is_named_with_the_request_and_the_line() -> None:
    class Broken:
        def route(self, request: Request, engines: Sequence[SimEngine]) -> int:
            return {"a": 1}[request.request_id]

    with pytest.raises(SchedulerError, match=r"request 'r0-0': Broken raised KeyError: .*test_cluster\.py, line"):
        run(burst(1), Broken())


# -- the routers -------------------------------------------------------------------------------------------------------


def loads(records: dict[str, RequestRecord]) -> list[int]:
    counts = Counter(record.replica for record in records.values())
    return [counts[replica] for replica in range(3)]


def test_round_robin_sends_to_one_after_the_other() -> None:
    _, records = run([(request(f"r{i}", float(i)), 1) for i in range(6)], RoundRobin())
    assert [records[f"r{i}"].replica for i in range(6)] == [0, 1, 2, 0, 1, 2]


def test_random_draws_from_the_seed_and_reaches_everyone() -> None:
    one, same, other = (run(burst(60), Random(seed=seed))[1] for seed in (1, 1, 2))
    assert one == same
    assert [record.replica for record in one.values()] != [record.replica for record in other.values()]
    assert min(loads(one)) > 10


def test_least_outstanding_goes_where_the_fewest_are_unfinished() -> None:
    arrivals = [(request("long", 0.0), 50), *[(request(f"r{i}", 10.0 + 2 * i), 1) for i in range(4)]]
    _, records = run(arrivals, LeastOutstanding(), 2)
    assert records["long"].replica == 0
    assert {records[f"r{i}"].replica for i in range(4)} == {1}


def test_least_kv_usage_goes_where_the_most_memory_is_free() -> None:
    # One long prompt takes more memory than two short ones, though it is but one request.
    arrivals = [(request("big", 0.0, num_prompt_tokens=60), 50)]
    arrivals += [(request(f"small{i}", 2.0 + i), 50) for i in range(2)]
    arrivals += [(request("next", 10.0), 1)]
    _, records = run(arrivals, LeastKVUsage(), 2)
    assert [records[name].replica for name in ("big", "small0", "small1", "next")] == [0, 1, 1, 1]
    _, records = run([(request(r.request_id, r.arrival_time), n) for r, n in arrivals], LeastOutstanding(), 2)
    assert [records[name].replica for name in ("big", "small0", "small1")] == [0, 1, 0]


def prefixed(name: str, arrival_s: float, *blocks: int, output: int = 1) -> tuple[Request, int]:
    tokens = 16 * len(blocks) + 5
    return request(name, arrival_s, num_prompt_tokens=tokens, prompt_block_hashes=blocks), output


def test_prefix_affinity_sends_a_prompt_where_the_longest_part_of_it_was_sent() -> None:
    arrivals = [
        prefixed("a", 0.0, 1, 2, output=90),
        prefixed("b", 0.0, 7, 8, output=90),
        prefixed("a again", 9.0, 1, 2, 3),
        prefixed("b again", 9.0, 7, 8, 9),
        prefixed("half of a", 9.0, 1, 20),
        prefixed("nobody's", 9.0, 30),
    ]
    _, records = run(arrivals, PrefixAffinity(), 3)
    where = {name: record.replica for name, record in records.items()}
    assert where == {"a": 0, "b": 1, "a again": 0, "b again": 1, "half of a": 0, "nobody's": 2}
    assert records["a again"].num_cached_tokens == 32


def test_prefix_affinity_keeps_the_turns_of_a_session_together() -> None:
    arrivals = [(request("busy", 0.0), 90), (request("turn 1", 0.0, content_id="chat"), 5)]
    arrivals += [(request("other", 4.0), 90), (request("turn 2", 9.0, content_id="chat", num_prompt_tokens=40), 5)]
    _, records = run(arrivals, PrefixAffinity(), 3)
    assert records["turn 1"].replica == records["turn 2"].replica == 1
    assert records["other"].replica == 2


def test_prefix_affinity_does_not_overload_the_engine_that_has_the_prefix() -> None:
    arrivals = [prefixed(f"r{i}", 0.0, 1, 2, output=20) for i in range(30)]
    _, stuck = run(arrivals, PrefixAffinity(max_lead=100), 3)
    assert loads(stuck) == [30, 0, 0]
    arrivals = [prefixed(f"r{i}", 0.0, 1, 2, output=20) for i in range(30)]
    _, spread = run(arrivals, PrefixAffinity(max_lead=2), 3)
    assert min(loads(spread)) >= 8


def test_prefix_affinity_tells_salts_apart() -> None:
    first, again = prefixed("a", 0.0, 1, output=90), prefixed("b", 9.0, 1)
    again[0].cache_salt = "other"
    _, records = run([first, again], PrefixAffinity(), 2)
    assert (records["a"].replica, records["b"].replica) == (0, 1)


def test_prefix_affinity_remembers_no_more_blocks_than_the_caches_hold() -> None:
    router = PrefixAffinity()
    run([prefixed(f"r{i}", 10.0 * i, *range(10 * i, 10 * i + 10)) for i in range(50)], router, 2)
    assert len(router._sent_to) == 2 * LIMITS.num_blocks


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_lead", -1), ("max_lead", 1.5), ("max_ratio", 0.5), ("max_ratio", "x"), ("max_ratio", math.nan)],
)
def test_a_parameter_of_prefix_affinity_that_makes_no_sense_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"router\.{key}="):
        PrefixAffinity(**{key: value})


def test_a_central_queue_serves_in_order_of_arrival_whoever_is_free_first() -> None:
    lengths = [9, 1, 2, 1, 1, 1]
    limits = Limits(token_budget=64, max_num_seqs=1, num_blocks=64)
    arrivals = [(request(f"r{i}"), length) for i, length in enumerate(lengths)]
    _, records = run(arrivals, CentralQueue(), 2, limits)
    started = [records[f"r{i}"].first_scheduled_s for i in range(6)]
    assert started == [0.0, 0.0, 1.0, 3.0, 4.0, 5.0]
    assert [records[f"r{i}"].replica for i in range(6)] == [0, 1, 1, 1, 1, 1]


def test_an_empty_workload_ends_at_once() -> None:
    assert run([], RoundRobin()) == ([], {})
    env = simpy.Environment()
    cluster = Cluster(env, [ChunkedPrefill(LIMITS)], RoundRobin(), Constant(), print, print)
    assert cluster.num_held == 0
