"""Admission by what memory will be needed: Past-Future, reservations, and Orca."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import NamedTuple

import pytest

from schedulers import InputError, Orca, PastFuture, Reserving, Scheduler
from schedulers.past_future import _peak
from tests.schedulers.builders import add_requests, create_request, create_scheduler, run_step
from tests.schedulers.clocked import Job, job, serve

POLICIES = {
    "conservative": (Reserving, {"output_share": 1.0}),
    "ratio": (Reserving, {"output_share": 0.5}),
    "aggressive": (Reserving, {"output_share": 0.0, "memory_share": 0.95}),
    "past-future": (PastFuture, {"seed": 1}),
}


class Outcome(NamedTuple):
    evictions: int
    usage: float
    end_s: float


def outcome(name: str) -> Outcome:
    """Evictions, mean share of blocks in use while somebody waits, and the end of 300 requests that wait at once."""
    draws = random.Random(11)
    jobs: list[Job] = [
        job(f"r{i}", 0.0, draws.randint(10, 60), min(int(draws.expovariate(1 / 60)) + 1, 300), max_tokens=300)
        for i in range(300)
    ]
    policy, options = POLICIES[name]
    scheduler = create_scheduler(policy, num_blocks=400, block_size=4, max_num_seqs=100, **options)
    usages: list[float] = []

    def watch() -> None:
        if scheduler.num_waiting:
            usages.append(scheduler.kv_cache.usage)

    requests = serve(scheduler, jobs, watch=watch)
    return Outcome(
        sum(request.num_preemptions for request in requests),
        sum(usages) / len(usages),
        max(request.finish_time or 0.0 for request in requests),
    )


def test_past_future_evicts_far_fewer_than_aggressive_and_uses_far_more_memory_than_conservative() -> None:
    conservative, ratio, aggressive, past_future = map(outcome, ("conservative", "ratio", "aggressive", "past-future"))
    assert conservative.evictions == 0
    assert past_future.evictions < 0.3 * aggressive.evictions
    assert past_future.usage > conservative.usage + 0.3
    assert past_future.usage > ratio.usage
    assert past_future.end_s < min(conservative.end_s, ratio.end_s)


def test_the_peak_is_the_most_that_is_held_at_the_end_of_any_request() -> None:
    draws = random.Random(2)
    for _ in range(200):
        futures = sorted(
            ((draws.randint(1, 50), draws.randint(0, 30)) for _ in range(draws.randint(1, 9))), key=lambda it: it[1]
        )
        held = [sum(now + time for now, left in futures if left >= time) for time in range(31)]
        assert _peak(futures) == max(held)


def test_without_a_past_the_limits_of_requests_are_their_future_and_with_one_it_is_not() -> None:
    scheduler = create_scheduler(PastFuture, num_blocks=40, block_size=4, reserve=0.0)
    requests = [create_request(f"r{i}", 20, max_tokens=100, eos_token_id=0) for i in range(6)]
    for request in requests[:2]:
        scheduler.add_request(request)
    assert list(run_step(scheduler)[0].num_scheduled_tokens) == ["r0"]
    run_step(scheduler, tokens={"r0": [0]})
    run_step(scheduler, tokens={"r1": [0]})
    for request in requests[2:]:
        scheduler.add_request(request)
    assert len(run_step(scheduler)[0].num_scheduled_tokens) == 4


def test_only_the_most_recent_lengths_are_remembered() -> None:
    scheduler = create_scheduler(PastFuture, window=3)
    assert isinstance(scheduler, PastFuture)
    serve(scheduler, [job(f"r{i}", 10.0 * i, 1, length) for i, length in enumerate((9, 4, 7, 4, 2))])
    assert scheduler._lengths == sorted(scheduler._history) == [2, 4, 7]


def test_another_seed_draws_another_future_and_the_same_one_the_same() -> None:
    def steps(seed: int) -> list[int]:
        draws, taken = random.Random(4), []
        scheduler = create_scheduler(PastFuture, num_blocks=60, block_size=4, seed=seed)
        jobs = [job(f"r{i}", 0.0, 10, draws.choice([1, 5, 40]), max_tokens=40) for i in range(60)]
        serve(scheduler, jobs, watch=lambda: taken.append(scheduler.num_running))
        return taken

    assert steps(0) == steps(0) != steps(1)


@pytest.mark.parametrize("policy", [Orca, Reserving])
def test_an_admission_reserves_the_longest_output_so_that_nobody_is_ever_evicted(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, num_blocks=10, block_size=4, prefix_caching=False)
    add_requests(scheduler, [8, 8, 8], max_tokens=8)
    assert list(run_step(scheduler)[0].num_scheduled_tokens) == ["r0", "r1"]
    while scheduler.live:
        output, _ = run_step(scheduler)
        assert not output.preempted_ids


def test_more_is_promised_than_there_is_when_the_share_of_memory_is_above_one() -> None:
    scheduler = create_scheduler(Reserving, num_blocks=10, block_size=4, memory_share=1.2)
    add_requests(scheduler, [8, 8, 8], max_tokens=8)
    assert list(run_step(scheduler)[0].num_scheduled_tokens) == ["r0", "r1", "r2"]


def test_orca_computes_whole_prompts_beside_decodes() -> None:
    scheduler = create_scheduler(Orca, token_budget=20)
    add_requests(scheduler, [10, 15, 4], max_tokens=5)
    shapes = [run_step(scheduler)[0].num_scheduled_tokens for _ in range(2)]
    assert shapes == [{"r0": 10}, {"r0": 1, "r1": 15, "r2": 4}]


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        *((Reserving, {"output_share": share}) for share in (-0.1, 1.1, "all", True)),
        *((Reserving, {"memory_share": share}) for share in (0, -1, None)),
        *((PastFuture, {"reserve": share}) for share in (-0.1, 1.1, None)),
        *((PastFuture, {"window": window}) for window in (0, 1.5, True)),
    ],
)
def test_a_share_that_is_none_is_refused_by_name(policy: type[Scheduler], options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))}=.*it must be a"):
        create_scheduler(policy, **options)  # type: ignore[arg-type]


def test_the_outcomes_are_ordered_by_how_much_is_reserved() -> None:
    usages = [outcome(name).usage for name in ("conservative", "ratio", "aggressive")]
    assert all(less < more for less, more in pairwise(usages))
