"""Length predictors: what they say of a request, and that a policy hears it."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from experiments.config import Point
from experiments.run import ensure, simulate_point
from experiments.workloads import Constant, Noisy, NoPrediction, Oracle, WorkloadRequest
from schedulers import InputError, RequestRefused
from tests.experiments.test_run import point


def request(number: int = 0, num_output_tokens: int = 100, max_tokens: int | None = None) -> WorkloadRequest:
    return WorkloadRequest(f"r{number}", 0.0, 10, num_output_tokens, max_tokens=max_tokens)


def test_the_oracle_says_what_will_be_produced() -> None:
    assert Oracle().predict(request(), 0) == 100.0
    assert Oracle().predict(request(max_tokens=30), 0) == 30.0


def test_nobody_says_nothing_and_a_constant_says_the_same_of_all() -> None:
    assert NoPrediction().predict(request(), 0) is None
    assert Constant(num_tokens=7).predict(request(), 0) == 7


def test_the_error_of_a_noisy_prediction_is_lognormal_with_the_sigma_asked_for() -> None:
    errors = [math.log((Noisy(sigma=0.5).predict(request(i), 3) or 0.0) / 100) for i in range(4000)]
    assert statistics.fmean(errors) == pytest.approx(0, abs=0.03)
    assert statistics.stdev(errors) == pytest.approx(0.5, rel=0.05)
    assert Noisy(sigma=0).predict(request(), 3) == 100.0


def test_the_error_of_a_request_depends_on_the_seed_and_the_request_and_not_on_who_came_before() -> None:
    noisy = Noisy(sigma=1.0)
    alone = noisy.predict(request(5), 0)
    assert [noisy.predict(request(i), 0) for i in range(6)][5] == alone
    assert len({alone, noisy.predict(request(6), 0), noisy.predict(request(5), 1)}) == 3


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("predictor.sigma=-1", r"predictor\.sigma=-1"),
        ("predictor.sigma=wild", r"predictor\.sigma=wild"),
        ("+predictor.bias=1", "predictor.*bias"),
        ("~predictor.sigma", "predictor.*sigma"),
        ("~predictor", "predictor is missing"),
        ("predictor._target_=schedulers.SLO", "predictor"),
    ],
)
def test_a_predictor_that_is_none_is_refused_by_name(override: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        point("predictor=noisy", override)


def srpt(predictor: str, *overrides: str) -> Point:
    return point("scheduler=srpt", f"predictor={predictor}", "scheduler.max_num_seqs=2", "workload.rate=30", *overrides)


def mean_e2e_s(run: Point) -> float:
    return statistics.fmean(record.finish_s - record.arrival_s for record in simulate_point(run).requests)


def test_srpt_with_an_oracle_is_better_than_with_a_noisy_predictor_and_that_than_fcfs() -> None:
    fcfs = mean_e2e_s(point("scheduler=chunked_prefill", "scheduler.max_num_seqs=2", "workload.rate=30"))
    assert mean_e2e_s(srpt("oracle")) < mean_e2e_s(srpt("noisy", "predictor.sigma=1.5")) < fcfs


def test_another_predictor_makes_another_point(tmp_path: Path) -> None:
    folders = {srpt(name, f"results={tmp_path}").folder for name in ("oracle", "noisy", "constant")}
    assert len(folders) == 3


def test_a_policy_that_needs_a_prediction_says_so_and_learns_its_own_if_told_to(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match=r"predictor=oracle.*scheduler\.predictor=client_mean"):
        ensure(srpt("none", f"results={tmp_path}"))
    assert "40 requests" in ensure(srpt("none", f"results={tmp_path}", "scheduler.predictor=client_mean"))
