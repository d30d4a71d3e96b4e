"""Little's law and work conservation hold in every run, and what violates them is told with its figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from experiments import conservation
from experiments.columns import RequestColumns, StepColumns
from experiments.run import ensure, simulate_point
from experiments.storage import read_summary
from schedulers import RequestRecord, StepRecord
from sim.costs import CostModel
from tests.experiments.points import point

Run = tuple[list[StepRecord], list[RequestRecord]]


@pytest.fixture(scope="module")
def run() -> Run:
    outcome = simulate_point(point("workload=fixed", "workload.rate=1", "engine.replicas=3"))
    return outcome.steps, outcome.requests


def violations(run: Run, pieces: int = 1) -> list[str]:
    """Of a run that comes in so many pieces."""
    steps, requests = run
    sizes = -(-len(steps) // pieces), -(-len(requests) // pieces)
    return conservation.violations(
        [StepColumns.of(steps[i : i + sizes[0]]) for i in range(0, len(steps), sizes[0])],
        [RequestColumns.of(requests[i : i + sizes[1]]) for i in range(0, len(requests), sizes[1])],
    )


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_simulated_run_violates_nothing_though_its_engines_are_idle_now_and_then(run: Run, pieces: int) -> None:
    assert violations(run, pieces) == []


@pytest.mark.parametrize(
    ("scheduler", "router"),
    [
        ("static", "random"),
        ("fcfs", "least_kv_usage"),
        ("chunked_prefill", "prefix_affinity"),
        ("priority", "central_queue"),
    ],
)
def test_no_policy_and_no_router_violates_them_even_with_preemptions(scheduler: str, router: str) -> None:
    outcome = simulate_point(
        point(
            f"scheduler={scheduler}", f"router={router}", "engine.replicas=2", "engine.num_blocks=1000",
            "workload.rate=40", "workload.num_requests=60",
        )
    )  # fmt: skip
    assert violations((outcome.steps, outcome.requests)) == []


def test_an_engine_need_not_know_of_a_request_on_its_way_to_it(tmp_path: Path) -> None:
    near = point("workload=fixed", "workload.rate=1")
    far = replace(near, cost=AtADistance(cast("CostModel", near.cost)), folder=tmp_path)
    ensure(far)
    assert not [told for told in read_summary(tmp_path)["warnings"] if "not conserved" in told]
    outcome = simulate_point(far)
    (told,) = violations((outcome.steps, outcome.requests))
    assert told.startswith("Work was not conserved: ")
    assert "waited up to 0.250000 s" in told


class AtADistance:
    """As another cost model, but a request takes a quarter of a second to the engine."""

    arrival_s = 0.25

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self.step_time, self.warnings, self.describe = cost.step_time, cost.warnings, cost.describe


def lose_a_request(run: Run) -> Run:
    return run[0], run[1][:-1]


def finish_late(run: Run) -> Run:
    *others, last = run[1]
    return run[0], [*others, last._replace(finish_s=last.finish_s + 0.5)]


def count_less(run: Run) -> Run:
    first, *others = run[0]
    return [first._replace(request_s=first.request_s - 1.0), *others], run[1]


@pytest.mark.parametrize("fault", [lose_a_request, finish_late, count_less])
def test_a_fault_of_either_account_breaks_littles_law(run: Run, fault: Callable[[Run], Run]) -> None:
    found = violations(fault(run))
    assert len(found) == 1
    assert found[0].startswith("Little's law is violated: the engines counted ")


def test_an_engine_that_idles_beside_a_waiting_request_is_told_with_the_request(run: Run) -> None:
    # The request with the longest gap before its engine's next busy period is made to have come during that gap.
    steps, requests = run
    mine = [step for step in steps if step.replica == 0]
    gaps = [(after.start_s - before.end_s, after.start_s) for before, after in pairwise(mine)]
    gap_s, start_s = max(gaps)
    assert gap_s > 0
    index = next(i for i, r in enumerate(requests) if r.replica == 0 and r.arrival_s == pytest.approx(start_s))
    changed = requests.copy()
    changed[index] = requests[index]._replace(arrival_s=start_s - gap_s / 2)
    found = violations((steps, changed))
    name = requests[index].request_id
    assert any(f"engine 0 while '{name}', which arrived at {start_s - gap_s / 2:.6f} s" in told for told in found)


def test_a_run_whose_engine_keeps_no_account_is_not_judged(run: Run) -> None:
    steps = [step._replace(request_s=None) for step in run[0]]
    assert violations((steps, run[1][:-1])) == []


def test_no_run_at_all_violates_nothing() -> None:
    assert conservation.violations([StepColumns.of([])], [RequestColumns.of([])]) == []
