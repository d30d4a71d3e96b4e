"""The simulator against queueing theory, in seconds: `experiment=theory` is the same over more jobs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.theory import formulas
from experiments.theory.cases import CASES, FINE, Case, jobs_of, simulate_case
from experiments.theory.formulas import Traffic
from experiments.theory.table import Theory, compare, joint_factor, student_t
from schedulers import InputError
from tests.shared import shared

CASE = {case.name: case for case in CASES}
TWO = [Traffic(0.6, 0.5, 0.5), Traffic(0.4, 1.0, 1.0)]

EXACT = {
    "M/D/1 rho=.7 E[W]": lambda: formulas.first_come_wait(Traffic(0.7, 1, 1)),
    "M/M/1 rho=.7 E[W]": lambda: formulas.first_come_wait(Traffic(0.7, 1, 2)),
    "M/G/1 (H2) rho=.7 E[W] PK": lambda: formulas.first_come_wait(Traffic(0.7, 1, 6.5)),
    "Cobham NP class1 E[W]": lambda: formulas.priority_waits(TWO)[0],
    "Cobham NP class2 E[W]": lambda: formulas.priority_waits(TWO)[1],
    "Preemptive-resume class1 E[T]": lambda: formulas.preemptive_times(TWO)[0],
    "Preemptive-resume class2 E[T]": lambda: formulas.preemptive_times(TWO)[1],
    "M/M/1 SJF nonpreemptive E[W]": lambda: formulas.shortest_first_wait(0.7),
    "M/M/1 SRPT E[T] (Schrage-Miller)": lambda: formulas.shortest_remaining_time(0.7),
    "M/M/4 a=2.8 E[W] (Erlang C)": lambda: formulas.pool_wait(2.8, 1, 4),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_closed_forms_have_the_values_that_others_computed(name: str) -> None:
    reference = json.loads(shared("data/queueing/queueing_reference.json").read_text())
    (exact,) = [row["exact"] for row in reference if row["case"] == name]
    assert EXACT[name]() == pytest.approx(exact, rel=1e-7)


def test_one_class_of_priority_is_first_come_first_served_and_one_server_is_no_pool() -> None:
    traffic = Traffic(0.8, 1, 2)
    assert formulas.priority_waits([traffic]) == [pytest.approx(formulas.first_come_wait(traffic))]
    assert formulas.preemptive_times([traffic]) == [pytest.approx(formulas.first_come_wait(traffic) + 1)]
    assert formulas.pool_wait(0.8, 1, 1) == pytest.approx(formulas.first_come_wait(traffic))


def test_no_discipline_changes_the_work_that_waits() -> None:
    """Kleinrock's conservation law: the sum of load times wait is the same for all that do not preempt."""
    waits = formulas.priority_waits(TWO)
    together = Traffic(1.0, 0.7, 0.7)
    assert sum(kind.load * wait for kind, wait in zip(TWO, waits, strict=True)) == pytest.approx(
        0.7 * formulas.first_come_wait(together)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_simulated_queue_has_the_mean_of_its_closed_form(case: Case) -> None:
    asked = Theory(jobs=5_000 if case.preemptive else 6_000, loads=[0.7], batches=20, warm_up=0.05)
    for row in compare(replace(case, effort=min(case.effort, 3)), 0.7, asked, seed=1):
        # Two half-widths: one queue in thousands would be outside by chance, but the draws are always the same.
        assert abs(row.simulated - row.exact) < 2 * row.half_width
        assert row.half_width < 0.4 * row.exact


def test_shorter_first_is_better_and_preemption_better_still() -> None:
    def mean(name: str) -> float:
        case = CASE[name]
        measured, _ = simulate_case(case, 0.8, 5_000, seed=3)
        return float(measured.mean()) - (1.0 if case.in_system else 0.0)

    assert mean("M/M/1 SRPT") < mean("M/M/1 SJF") < mean("M/M/1")


def test_an_urgent_job_does_not_notice_others_that_it_may_interrupt() -> None:
    measured, classes = simulate_case(CASE["preemptive priorities"], 0.9, 5_000, seed=0)
    alone = formulas.preemptive_times([Traffic(0.6 * 0.9 / 0.7, 0.5, 0.5)])[0]
    assert measured[classes == 0].mean() == pytest.approx(alone, rel=0.1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jobs", 0),
        ("jobs", "many"),
        ("loads", 0.7),
        ("loads", []),
        ("loads", [1.0]),
        ("loads", [0.5, -1]),
        ("batches", 1),
        ("batches", 10**6),
        ("warm_up", 1.0),
        ("warm_up", "x"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(key: str, value: object) -> None:
    given = {"jobs": 10_000, "loads": [0.7], "batches": 20, "warm_up": 0.05}
    with pytest.raises(InputError, match=f"question.{key}"):
        Theory(**{**given, key: value})  # type: ignore[arg-type]


def test_student_s_t_and_the_joint_interval_have_the_values_of_the_tables() -> None:
    for quantile, freedom, exact in ((0.975, 29, 2.0452), (0.9995, 29, 3.6594), (0.975, 20, 2.0860)):
        assert student_t(quantile, freedom) == pytest.approx(exact, rel=0.01)
    assert joint_factor(1, 30) == 1.0
    assert joint_factor(30, 30) == pytest.approx(1.68, abs=0.03)


@pytest.mark.parametrize("name", ["M/D/1", "M/M/1", "M/G/1 (H2)"])
def test_every_job_waits_as_long_as_lindley_s_recursion_says(name: str) -> None:
    """W(n + 1) = max(0, W(n) + S(n) - T(n)): no statistics, the same jobs (Lindley 1952)."""
    case, count = CASE[name], 2_000
    measured, _ = simulate_case(case, 0.9, count, seed=0)
    jobs = jobs_of(case, 0.9, count, seed=0)
    wait_s, expected = 0.0, []
    befores_s, services_s = np.append(0.0, jobs.arrivals_s[:-1]), np.append(0.0, jobs.services_s[:-1])
    for arrival_s, before_s, service_s in zip(jobs.arrivals_s, befores_s, services_s, strict=True):
        wait_s = max(0.0, wait_s + service_s - (arrival_s - before_s))
        expected.append(wait_s)
    # Services are rounded to whole tokens, each of which may add up over a busy period.
    assert measured == pytest.approx(np.array(expected), abs=0.5 * count / FINE)
    assert float(np.abs(measured - expected).mean()) < 0.002
