"""LPM: who finds most in the cache goes first, within the patience of others."""

from __future__ import annotations

import random

from schedulers import LPM, ChunkedPrefill, Scheduler
from tests.schedulers.builders import create_request, create_scheduler, run_step
from tests.schedulers.clocked import Job, finish_order, job, serve


def test_the_longest_cached_prefix_starts_first_then_the_earliest() -> None:
    scheduler = create_scheduler(LPM, block_size=4)
    serve(scheduler, [job("warm", 0.0, range(40), 1)])
    for name, prompt in (("none", range(500, 520)), ("some", [*range(8), 90]), ("most", [*range(32), 91])):
        scheduler.add_request(create_request(name, list(prompt), arrival_time=1.0))
    scheduler.add_request(create_request("also none", 20, arrival_time=2.0))
    assert list(run_step(scheduler, 2.0)[0].num_scheduled_tokens) == ["most", "some", "none", "also none"]


def sharing(count: int) -> list[Job]:
    """One that shares nothing, and a stream of requests that share all of a prompt and keep one slot busy."""
    warm = [job("warm", 0.0, range(40), 4)]
    return [*warm, job("alone", 1.0, 40, 1), *(job(f"r{i}", 1.0 + i, range(40), 4) for i in range(count))]


def test_whoever_shares_nothing_starves_without_patience_and_not_with() -> None:
    without = serve(create_scheduler(LPM, block_size=4, max_num_seqs=1, patience_s=None), sharing(20))
    patient = serve(create_scheduler(LPM, block_size=4, max_num_seqs=1, patience_s=12.0), sharing(20))
    assert finish_order(without)[-1] == "alone"
    assert finish_order(patient).index("alone") < 6


def test_only_the_earliest_are_compared_and_the_rest_keep_their_order() -> None:
    scheduler = create_scheduler(LPM, block_size=4, most_compared=2)
    serve(scheduler, [job("warm", 0.0, range(40), 1)])
    for i, prompt in enumerate((range(100, 120), range(200, 220), range(20), range(40))):
        scheduler.add_request(create_request(f"r{i}", list(prompt), arrival_time=1.0 + i))
    assert list(run_step(scheduler, 5.0)[0].num_scheduled_tokens) == ["r0", "r1", "r2", "r3"]


def hit_rate(policy: type[Scheduler], **options: object) -> float:
    """Of 120 requests at once, each of one of 12 documents, in an engine whose cache holds three."""
    draws = random.Random(5)
    jobs = []
    for i in range(120):
        document = draws.randrange(12)
        start = document * 1000
        jobs.append(job(f"r{i}", 0.0, [*range(start, start + 60), 10**6 + i], 4))
    scheduler = create_scheduler(policy, block_size=4, num_blocks=50, max_num_seqs=2, **options)  # type: ignore[arg-type]
    serve(scheduler, jobs)
    return scheduler.kv_cache.hit_rate or 0.0


def test_the_hit_rate_is_above_that_of_fcfs_when_the_cache_holds_few_of_the_prefixes() -> None:
    assert hit_rate(LPM, patience_s=None) > 0.8 > 2 * hit_rate(ChunkedPrefill)
