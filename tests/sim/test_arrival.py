"""The way of a request to the engine, which is in no step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from schedulers import ChunkedPrefill, InputError, Limits, Request, RequestRecord, StepRecord
from schedulers.step import BatchShape
from sim.cluster import simulate_cluster
from sim.engine import simulate
from sim.overlapped import simulate_overlapped
from sim.routing import RoundRobin
from sim.tokens import EOS

LIMITS = Limits(token_budget=64, max_num_seqs=4, num_blocks=64, block_size=16)


class Distant:
    """Every step takes a second, and so does the way to the engine."""

    arrival_s = 1.0

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        return 1.0

    def warnings(self) -> list[str]:
        return []

    def describe(self) -> str:
        return "a second each"


def request(request_id: str, at: float) -> Request:
    return Request(request_id, at, num_prompt_tokens=8, eos_token_id=EOS)


def one_replica(arrivals: Sequence[tuple[Request, int]], policy: ChunkedPrefill, *rest: Any, **more: Any) -> None:
    simulate_cluster(arrivals, [policy], RoundRobin(), *rest, **more)


@pytest.mark.parametrize("run", [simulate, simulate_overlapped, one_replica])
def test_a_request_is_seen_so_much_later_and_waits_from_its_arrival(run: Callable[..., Any]) -> None:
    steps: list[StepRecord] = []
    records: list[RequestRecord] = []
    arrivals = [(request("a", 0.5), 1), (request("b", 1.2), 1)]
    run(arrivals, ChunkedPrefill(LIMITS), Distant(), steps.append, records.append)
    first, second = records
    assert (first.arrival_s, first.first_scheduled_s, first.finish_s) == (0.5, 1.5, 2.5)
    assert (second.arrival_s, second.first_scheduled_s, second.finish_s) == (1.2, 2.5, 3.5)
    assert sum(step.request_s for step in steps) == pytest.approx(2.0 + 2.3)


@pytest.mark.parametrize("way_s", [-1.0, float("nan"), float("inf"), 10**400, "soon", True])
@pytest.mark.parametrize("run", [simulate, simulate_overlapped, one_replica])
def test_a_cost_model_whose_way_is_no_time_is_refused(
    run: Callable[..., Any], way_s: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Distant, "arrival_s", way_s)
    with pytest.raises(InputError, match=r"Distant\.arrival_s is .*; it must be a finite number of seconds, 0 or more"):
        run([(request("a", 0.0), 1)], ChunkedPrefill(LIMITS), Distant(), lambda _: None, lambda _: None)


@pytest.mark.parametrize("run", [simulate, one_replica])
def test_so_is_one_that_follows_another(run: Callable[..., Any]) -> None:
    records: list[RequestRecord] = []

    def follow_ups(record: RequestRecord) -> list[tuple[Request, int]]:
        return [(request("b", record.finish_s + 3), 1)] if record.request_id == "a" else []

    run([(request("a", 0.0), 1)], ChunkedPrefill(LIMITS), Distant(), lambda _: None, records.append,
        follow_ups=follow_ups)  # fmt: skip
    assert [record.first_scheduled_s for record in records] == [1.0, 6.0]
