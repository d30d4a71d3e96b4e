"""MLFQ: who sinks, who skips, who comes back up."""

from __future__ import annotations

import pytest

from schedulers import MLFQ, ChunkedPrefill
from tests.schedulers.builders import create_request, create_scheduler, run_step
from tests.schedulers.clocked import Job, finish_order, job, mean_time_in_system, serve


def mlfq(**options: object) -> MLFQ:
    """A top level of 4 tokens and levels of 8, 16, ... below, in an engine with one slot."""
    scheduler = create_scheduler(MLFQ, **{"max_num_seqs": 1, "quantum_tokens": 4, **options})  # type: ignore[arg-type]
    assert isinstance(scheduler, MLFQ)
    return scheduler


def test_a_request_sinks_a_level_with_each_quantum_and_quanta_double() -> None:
    scheduler = mlfq(num_levels=4)
    request = create_request("r0", 1)
    scheduler.add_request(request)
    levels = []
    for _ in range(40):
        run_step(scheduler)
        levels.append(scheduler.level(request))
    assert [levels.count(level) for level in range(4)] == [3, 8, 16, 13]
    assert levels == sorted(levels)


@pytest.mark.parametrize(("prompt", "level"), [(1, 0), (39, 0), (40, 1), (79, 1), (80, 2), (160, 3), (5000, 3)])
def test_a_long_prompt_skips_the_levels_whose_quantum_it_would_use_up(prompt: int, level: int) -> None:
    scheduler = mlfq(num_levels=4, prompt_tokens_per_token=10)
    request = create_request("r0", prompt)
    scheduler.add_request(request)
    assert scheduler.level(request) == level


def test_a_short_request_overtakes_a_long_one_that_came_before_though_nobody_knows_lengths() -> None:
    jobs = [job("long", 0.0, 1, 60), job("short", 10.0, 1, 3)]
    requests = serve(mlfq(), jobs)
    assert finish_order(requests) == ["short", "long"]
    assert requests[1].finish_time == 13.0


def test_a_request_within_its_first_quantum_is_not_displaced_by_another_new_one() -> None:
    jobs = [job("first", 0.0, 1, 4), job("second", 1.0, 1, 2)]
    requests = serve(mlfq(), jobs)
    assert finish_order(requests) == ["first", "second"]
    assert not requests[0].num_preemptions


def test_long_requests_take_turns_by_quanta_and_not_by_tokens() -> None:
    requests = serve(mlfq(promote_after_s=None), [job("a", 0.0, 1, 100), job("b", 0.0, 1, 100)])
    assert sum(request.num_preemptions for request in requests) <= 10


def test_mean_time_in_system_is_below_that_of_fcfs_when_few_are_long() -> None:
    def jobs() -> list[Job]:
        return [job(f"r{i}", 8.0 * i, 1, 60 if i % 10 == 0 else 2) for i in range(60)]

    fcfs = mean_time_in_system(serve(create_scheduler(ChunkedPrefill, max_num_seqs=1), jobs()))
    assert mean_time_in_system(serve(mlfq(), jobs())) < 0.6 * fcfs


@pytest.mark.parametrize(("promote_after_s", "is_starved"), [(None, True), (20.0, False)])
def test_whoever_has_waited_too_long_starts_over_at_the_top(promote_after_s: float | None, *, is_starved: bool) -> None:
    jobs = [job("long", 0.0, 1, 12)] + [job(f"short{i}", 5.0 + 2.0 * i, 1, 2) for i in range(60)]
    requests = serve(mlfq(promote_after_s=promote_after_s), jobs)
    assert (finish_order(requests)[-1] == "long") is is_starved


def test_a_request_that_left_is_forgotten() -> None:
    scheduler = mlfq()
    serve(scheduler, [job("a", 0.0, 1, 9), job("b", 0.0, 1, 9)])
    assert not scheduler._head_starts
    assert not scheduler._waiting_since
