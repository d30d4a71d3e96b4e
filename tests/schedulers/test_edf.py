"""EDF: who is served first, and whose deadlines are met."""

from __future__ import annotations

import pytest

from schedulers import EDF, SLO, BatchShape, ChunkedPrefill, InputError, Request, Scheduler
from tests.schedulers.builders import create_request, create_scheduler, run_step
from tests.schedulers.clocked import Job, finish_order, job, serve


def by_tokens(shape: BatchShape) -> float:
    """A step takes a second for each 10 tokens."""
    return shape.num_tokens / 10


def in_time(requests: list[Request]) -> list[str]:
    """Those whose first token came by its deadline."""
    return [
        request.request_id
        for request in requests
        if request.slo and request.slo.ttft_s and request.token_times[0] <= request.arrival_time + request.slo.ttft_s
    ]


def feasible() -> list[Job]:
    """Prompts of 4 s, 1 s, 2 s and 1 s of work that one server can bring home, the urgent ones last to come."""
    return [
        job("patient", 0.0, 40, 1, slo=SLO(8.5)),
        job("less patient", 0.1, 20, 1, slo=SLO(5.0)),
        job("urgent", 0.9, 10, 1, slo=SLO(2.1)),
        job("also", 2.0, 10, 1, slo=SLO(2.1)),
    ]


@pytest.mark.parametrize(("policy", "num_in_time"), [(EDF, 4), (ChunkedPrefill, 1)])
def test_edf_meets_a_set_of_deadlines_that_can_be_met_and_fcfs_does_not(
    policy: type[Scheduler], num_in_time: int
) -> None:
    requests = serve(create_scheduler(policy, token_budget=10), feasible(), by_tokens)
    assert len(in_time(requests)) == num_in_time


def test_a_prompt_due_earlier_overtakes_one_that_is_half_computed_beside_all_decodes() -> None:
    scheduler = create_scheduler(EDF, token_budget=10)
    scheduler.add_request(create_request("decoding", 8, slo=SLO(1.0)))
    scheduler.add_request(create_request("patient", 20, slo=SLO(60.0)))
    run_step(scheduler)
    scheduler.add_request(create_request("urgent", 6, arrival_time=1.0, slo=SLO(1.0)))
    assert run_step(scheduler, 1.0)[0].num_scheduled_tokens == {"decoding": 1, "urgent": 6, "patient": 3}


def test_a_target_of_its_own_counts_and_that_of_the_policy_is_for_requests_without() -> None:
    scheduler = create_scheduler(EDF, ttft_s=2.0)
    assert isinstance(scheduler, EDF)
    assert scheduler.deadline(create_request("own", arrival_time=1.0, slo=SLO(4.0))) == 5.0
    assert scheduler.deadline(create_request("partly", arrival_time=1.0, slo=SLO(None, 0.1))) == 3.0
    assert scheduler.deadline(create_request("none", arrival_time=1.0)) == 3.0


def test_who_has_no_target_goes_last_and_among_each_other_by_arrival() -> None:
    scheduler = create_scheduler(EDF)
    for name, arrival_time, slo in (("a", 0.0, None), ("b", 1.0, SLO()), ("c", 2.0, SLO(60.0)), ("d", 3.0, SLO(1.0))):
        scheduler.add_request(create_request(name, arrival_time=arrival_time, slo=slo))
    assert [request.request_id for request in scheduler.waiting] == ["d", "c", "a", "b"]


def test_an_earlier_deadline_displaces_once_and_the_two_do_not_take_turns() -> None:
    jobs = [job("patient", 0.0, 5, 30, slo=SLO(50.0, 1.0)), job("urgent", 5.0, 5, 30, slo=SLO(1.0, 2.0))]
    requests = serve(create_scheduler(EDF, max_num_seqs=1), jobs)
    assert finish_order(requests) == ["urgent", "patient"]
    assert [request.num_preemptions for request in requests] == [1, 0]


@pytest.mark.parametrize("target", [0, -1.0, "soon", True, float("inf")])
def test_a_target_that_is_no_time_is_refused_by_name(target: object) -> None:
    with pytest.raises(InputError, match=r"ttft_s=.*a number above 0"):
        create_scheduler(EDF, ttft_s=target)
