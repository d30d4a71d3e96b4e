"""VTC: what two clients get, and what one that was away gets."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from schedulers import VTC, ChunkedPrefill, InputError, Request, Scheduler
from tests.schedulers.builders import create_request, create_scheduler, run_step
from tests.schedulers.clocked import Job, job, serve

PROMPT, OUTPUT, POOL = 16, 16, 160
#: Theorem 4.4 with weights of 1 and 2.
BOUND = 2 * max(1 * PROMPT, 2 * POOL)


def jobs_of(rates: dict[str, float], count: int) -> list[Job]:
    """Requests of 16 and 16 tokens from each client, evenly at its rate."""
    jobs = [
        job(f"{client_id}{i}", i / rate, PROMPT, OUTPUT, client_id=client_id)
        for client_id, rate in rates.items()
        for i in range(int(count * rate))
    ]
    return sorted(jobs, key=lambda entry: entry[0].arrival_time)


def service(requests: list[Request]) -> Counter[str]:
    """What each client has had, by the paper's measure."""
    served: Counter[str] = Counter()
    for request in requests:
        if request.first_scheduled_time is not None:
            served[request.client_id] += PROMPT + 2 * request.num_output_tokens
    return served


def largest_gap(policy: type[Scheduler], rates: dict[str, float], until_s: float) -> float:
    """Largest difference of two clients' service while both have requests waiting."""
    jobs = jobs_of(rates, 300)
    requests = [request for request, _ in jobs]
    scheduler = create_scheduler(policy, num_blocks=POOL // 16, prefix_caching=False)
    gaps = [0.0]

    def watch() -> None:
        served = service(requests)
        if {request.client_id for request in scheduler.waiting} == set(rates):
            gaps.append(abs(served["a"] - served["b"]))

    serve(scheduler, [entry for entry in jobs if entry[0].arrival_time < until_s], watch=watch)
    return max(gaps)


def test_the_service_of_two_backlogged_clients_never_differs_by_more_than_the_bound_and_under_fcfs_it_does() -> None:
    rates = {"a": 0.5, "b": 1.5}
    assert 0 < largest_gap(VTC, rates, 150.0) <= BOUND
    assert largest_gap(ChunkedPrefill, rates, 150.0) > 2 * BOUND


def test_a_client_of_twice_the_weight_gets_twice_the_service() -> None:
    scheduler = create_scheduler(VTC, num_blocks=POOL // 16, client_weights={"b": 2})
    requests = [request for request, _ in jobs_of({"a": 2.0, "b": 2.0}, 100)]
    for request in requests:
        scheduler.add_request(request)
    for step in range(300):
        run_step(scheduler, float(step))
    assert {request.client_id for request in scheduler.waiting} == {"a", "b"}
    served = service(requests)
    assert served["b"] / served["a"] == pytest.approx(2, rel=0.1)


def test_a_client_that_was_away_is_lifted_to_the_least_served_of_those_that_wait() -> None:
    scheduler = create_scheduler(VTC, max_num_seqs=1)
    assert isinstance(scheduler, VTC)
    serve(scheduler, [job(f"a{i}", 0.0, 16, 4, client_id="a") for i in range(10)])
    assert scheduler.counters == {"a": 10 * (16 + 2 * 4)}
    for i in range(3):
        scheduler.add_request(create_request(f"again{i}", client_id="a"))
    scheduler.add_request(create_request("back", client_id="b"))
    assert scheduler.counters == {"a": 240.0, "b": 240.0}


def test_a_client_that_comes_when_nobody_waits_is_lifted_to_the_last_that_left_the_queue() -> None:
    scheduler = create_scheduler(VTC)
    assert isinstance(scheduler, VTC)
    scheduler.add_request(create_request("a0", 100, client_id="a"))
    run_step(scheduler)
    scheduler.add_request(create_request("b0", client_id="b"))
    assert scheduler.counters["b"] == scheduler.counters["a"] == 102.0


def test_a_client_that_never_left_the_queue_is_not_lifted() -> None:
    scheduler = create_scheduler(VTC, max_num_seqs=1)
    assert isinstance(scheduler, VTC)
    for name in ("a0", "b0", "b1"):
        scheduler.add_request(create_request(name, 100, client_id=name[0]))
    run_step(scheduler)
    scheduler.add_request(create_request("b2", client_id="b"))
    assert scheduler.counters == {"a": 102.0, "b": 0.0}


def test_prompts_are_charged_in_the_step_that_admits_them_so_that_clients_take_turns_within_it() -> None:
    scheduler = create_scheduler(VTC)
    for name in ("a0", "a1", "a2", "b0", "b1"):
        scheduler.add_request(create_request(name, client_id=name[0]))
    assert list(run_step(scheduler)[0].num_scheduled_tokens) == ["a0", "b0", "a1", "b1", "a2"]


def test_a_prompt_is_charged_once_though_it_is_computed_again() -> None:
    draws = random.Random(3)
    jobs = [job(f"r{i}", float(i), draws.randint(5, 30), 20, client_id=draws.choice("ab")) for i in range(12)]
    scheduler = create_scheduler(VTC, num_blocks=5)
    assert isinstance(scheduler, VTC)
    requests = serve(scheduler, jobs)
    assert sum(request.num_preemptions for request in requests) > 0
    total = sum(request.num_prompt_tokens + 2 * request.num_output_tokens for request in requests)
    assert total <= sum(scheduler.counters.values()) < 1.2 * total  # lifts may have added


@pytest.mark.parametrize("weights", [{"a": 0}, {"a": "much"}, {"a": -1}, {"a": True}, 3])
def test_weights_that_are_none_are_refused_by_name(weights: object) -> None:
    with pytest.raises(InputError, match="client_weights"):
        create_scheduler(VTC, client_weights=weights)
