"""SJF, SRPT and HRRN: short outputs first, as far as anybody knows which are short."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest

from schedulers import HRRN, SJF, SRPT, ChunkedPrefill, InputError, RequestRefused, Scheduler
from tests.schedulers.builders import create_request, create_scheduler, run_step
from tests.schedulers.clocked import Job, finish_order, job, mean_time_in_system, serve


def random_jobs(seed: int, sigma: float = 0.0) -> list[Job]:
    """Jobs for one server at a load of 0.8, of very uneven lengths, predicted with an error of `sigma`."""
    draws, now, jobs = random.Random(seed), 0.0, []
    for number in range(300):
        length = 2 if draws.random() < 0.8 else 40
        now += draws.expovariate(0.8 / 9.6)
        error = math.exp(sigma * NormalDist().inv_cdf(draws.random()))
        jobs.append(job(f"r{number}", now, 1, length, predicted_output_tokens=length * error))
    return jobs


def mean_time(policy: type[Scheduler], sigma: float = 0.0) -> float:
    scheduler = create_scheduler(policy, max_num_seqs=1)
    return mean_time_in_system(serve(scheduler, random_jobs(7, sigma)))


def test_the_shortest_predicted_output_starts_first_and_whoever_has_started_goes_on() -> None:
    jobs = [job("long", 0.0, 5, 30), job("short", 1.0, 5, 3), job("middle", 0.5, 5, 10), job("shortest", 20.0, 5, 1)]
    requests = serve(create_scheduler(SJF, max_num_seqs=1), jobs)
    assert finish_order(requests) == ["long", "shortest", "short", "middle"]
    assert not any(request.num_preemptions for request in requests)


def test_a_shorter_arrival_takes_the_place_of_whoever_has_more_left_under_srpt() -> None:
    jobs = [job("long", 0.0, 5, 30), job("short", 1.0, 5, 3), job("equal", 2.0, 5, 29), job("late", 29.0, 5, 20)]
    requests = serve(create_scheduler(SRPT, max_num_seqs=1), jobs)
    assert finish_order(requests) == ["short", "long", "late", "equal"]
    assert [request.num_preemptions for request in requests] == [1, 0, 0, 0]


def test_mean_time_in_system_falls_from_fcfs_to_sjf_to_srpt() -> None:
    assert mean_time(SRPT) < mean_time(SJF) < 0.6 * mean_time(ChunkedPrefill)


def test_a_noisy_prediction_is_worth_less_than_the_truth_and_more_than_none() -> None:
    assert mean_time(SRPT) < mean_time(SRPT, sigma=1.5) < 0.8 * mean_time(ChunkedPrefill)


def test_a_request_that_has_outlived_its_prediction_is_not_displaced() -> None:
    jobs = [job("outlives", 0.0, 5, 30, predicted_output_tokens=4), job("short", 10.0, 5, 1)]
    assert finish_order(serve(create_scheduler(SRPT, max_num_seqs=1), jobs)) == ["outlives", "short"]


def test_a_short_prompt_overtakes_a_long_one_that_is_half_computed_under_srpt() -> None:
    scheduler = create_scheduler(SRPT, token_budget=10)
    scheduler.add_request(create_request("long", 30, predicted_output_tokens=9))
    run_step(scheduler)
    scheduler.add_request(create_request("short", 6, arrival_time=1.0, predicted_output_tokens=2))
    assert run_step(scheduler, 1.0)[0].num_scheduled_tokens == {"short": 6, "long": 4}


def test_whoever_waited_long_for_its_length_goes_first_under_hrrn_and_starves_under_sjf() -> None:
    jobs = [job(f"short{i:02}", max(4.0 * (i - 3), 0.0), 1, 4) for i in range(40)] + [job("long", 1.0, 1, 20)]
    place = {
        policy: finish_order(serve(create_scheduler(policy, max_num_seqs=1), jobs_again(jobs))).index("long")
        for policy in (ChunkedPrefill, HRRN, SJF)
    }
    assert place[ChunkedPrefill] == 4
    assert 8 < place[HRRN] < 20
    assert place[SJF] == 40


def jobs_again(jobs: list[Job]) -> list[Job]:
    return [job(request.request_id, request.arrival_time, 1, length) for request, length in jobs]


@pytest.mark.parametrize("policy", [SJF, SRPT, HRRN])
def test_a_request_without_a_prediction_is_refused_with_what_to_do_about_it(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy)
    with pytest.raises(RequestRefused, match=r"'r0' has no predicted_output_tokens.*predictor=oracle"):
        scheduler.add_request(create_request("r0", predicted_output_tokens=None))
    assert not scheduler.num_waiting
    scheduler.add_request(create_request("r0"))


def test_the_mean_of_a_clients_finished_requests_is_learned() -> None:
    scheduler = create_scheduler(SJF, max_num_seqs=1, predictor="client_mean")
    serve(scheduler, [job("a0", 0.0, 1, 10, client_id="a"), job("b0", 1.0, 1, 2, client_id="b")])
    for name, client_id in (("a1", "a"), ("unknown", "c"), ("b1", "b")):
        scheduler.add_request(create_request(name, client_id=client_id, predicted_output_tokens=None))
    assert [request.request_id for request in scheduler.waiting] == ["b1", "unknown", "a1"]
    assert [scheduler.order(request, 0.0)[0] for request in scheduler.waiting] == [2.0, 6.0, 10.0]


def test_an_aborted_request_teaches_nothing_and_a_prediction_stands_until_the_end() -> None:
    scheduler = create_scheduler(SJF, predictor="client_mean")
    for name in ("cut off", "stands"):
        scheduler.add_request(create_request(name, max_tokens=3))
    run_step(scheduler)
    scheduler.abort_request("cut off", 1.0)
    run_step(scheduler)
    standing = scheduler.live["stands"]
    scheduler.add_request(create_request("late"))
    assert scheduler.order(scheduler.live["late"], 0.0)[0] == 0.0
    run_step(scheduler)
    assert standing.num_output_tokens == 3
    assert scheduler.order(scheduler.live["late"], 0.0)[0] == 0.0
    scheduler.add_request(create_request("later"))
    assert scheduler.order(scheduler.live["later"], 0.0)[0] == 3.0


def test_an_unknown_predictor_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="predictor=psychic: it must be one of given, client_mean"):
        create_scheduler(SJF, predictor="psychic")
