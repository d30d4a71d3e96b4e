"""Who loses its place, and the orders that need only a word: aging and chance."""

from __future__ import annotations

import random

import pytest

from schedulers import EDF, MLFQ, SLO, SRPT, Aging, ChunkedPrefill, InputError, Priority, RandomOrder, Scheduler
from schedulers.victims import RULES
from tests.schedulers.builders import create_request, create_scheduler, ids, run_step
from tests.schedulers.clocked import job, serve


def three_running(rule: str) -> Scheduler:
    """Priorities 5, 0, 3 and 40, 10, 20 tokens, in blocks of 10, with one block left; the last to come is urgent."""
    scheduler = create_scheduler(Priority, num_blocks=8, block_size=10, victim_rule=rule, prefix_caching=False)
    for name, priority, prompt in (("a", 5, 38), ("b", 0, 8), ("c", 3, 18)):
        scheduler.add_request(create_request(name, prompt, priority=priority, max_tokens=40))
        run_step(scheduler)
    return scheduler


@pytest.mark.parametrize(("rule", "victim"), [("least_urgent", "a"), ("last_admitted", "c")])
def test_an_urgent_arrival_displaces_whom_the_rule_names(rule: str, victim: str) -> None:
    scheduler = three_running(rule)
    scheduler.add_request(create_request("urgent", 18, priority=1))
    assert run_step(scheduler)[0].preempted_ids == [victim]


def test_of_those_less_urgent_the_one_with_the_fewest_computed_tokens_is_displaced() -> None:
    scheduler = three_running("fewest_computed_tokens")
    scheduler.add_request(create_request("urgent", 18, priority=1))
    assert run_step(scheduler)[0].preempted_ids == ["c"]


@pytest.mark.parametrize(
    ("rule", "victim"), [("least_urgent", "r2"), ("last_admitted", "r2"), ("fewest_computed_tokens", "r1")]
)
def test_a_running_request_that_cannot_grow_takes_the_blocks_of_whom_the_rule_names(rule: str, victim: str) -> None:
    scheduler = create_scheduler(ChunkedPrefill, num_blocks=6, block_size=8, victim_rule=rule, prefix_caching=False)
    for i, prompt in enumerate((16, 7, 15)):
        scheduler.add_request(create_request(f"r{i}", prompt, arrival_time=float(i), max_tokens=20))
    preempted: list[str] = []
    while not preempted:
        preempted = run_step(scheduler)[0].preempted_ids
    assert preempted == [victim]


@pytest.mark.parametrize("policy", [ChunkedPrefill, SRPT])
@pytest.mark.parametrize("rule", ["nobody", None, 3, ["last_admitted"]])
def test_a_rule_that_is_none_is_refused_with_those_there_are(policy: type[Scheduler], rule: object) -> None:
    with pytest.raises(InputError, match=f"victim_rule=.*{', '.join(RULES)}"):
        create_scheduler(policy, victim_rule=rule)


def test_waiting_makes_up_for_priority_under_aging() -> None:
    scheduler = create_scheduler(Aging, class_s=10.0)
    for name, priority, arrival_time in (("old", 2, 0.0), ("urgent", 0, 19.0), ("late", 0, 21.0), ("middle", 1, 9.5)):
        scheduler.add_request(create_request(name, priority=priority, arrival_time=arrival_time))
    assert ids(list(scheduler.waiting)) == ["urgent", "middle", "old", "late"]


@pytest.mark.parametrize("class_s", [0, -1.0, None, "long"])
def test_a_class_that_no_waiting_makes_up_for_is_refused(class_s: object) -> None:
    with pytest.raises(InputError, match="class_s="):
        create_scheduler(Aging, class_s=class_s)


def random_order(seed: int) -> list[str]:
    scheduler = create_scheduler(RandomOrder, seed=seed)
    for i in range(20):
        scheduler.add_request(create_request(f"r{i}"))
    return ids(list(scheduler.waiting))


def test_a_random_order_is_that_of_its_seed() -> None:
    orders = [random_order(seed) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0], key=lambda name: int(name[1:]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", [Priority, SRPT, MLFQ, EDF])
def test_two_requests_never_take_each_others_place_without_end(policy: type[Scheduler], rule: str) -> None:
    draws = random.Random(9)
    jobs = [
        job(
            f"r{i}",
            2.0 * i,
            draws.randint(1, 150),
            draws.randint(1, 120),
            priority=draws.randrange(4),
            slo=draws.choice([None, SLO(5.0, 1.0), SLO(50.0, 2.0)]),
        )
        for i in range(80)
    ]
    scheduler = create_scheduler(
        policy, num_blocks=40, block_size=8, token_budget=64, prefix_caching=False, victim_rule=rule
    )
    steps: list[None] = []

    def watch() -> None:
        steps.append(None)
        assert len(steps) < 10_000, "this takes too long"

    requests = serve(scheduler, jobs, watch=watch)
    assert all(request.finish_time for request in requests)
