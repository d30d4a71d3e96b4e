"""The FCFS policy: whole prompts first, decodes when no prompt can start."""

from __future__ import annotations

import pytest

from schedulers import FCFS, InputError
from tests.schedulers.builders import add_requests, create_request, create_scheduler, ids, run_step, run_to_end


def test_while_a_prompt_can_start_decodes_wait() -> None:
    scheduler = create_scheduler(FCFS)
    add_requests(scheduler, [10], max_tokens=8)
    run_step(scheduler)
    scheduler.add_request(create_request("late", 20, arrival_time=1.0))
    assert run_step(scheduler, 1.0)[0].num_scheduled_tokens == {"late": 20}
    assert run_step(scheduler, 1.0)[0].num_scheduled_tokens == {"r0": 1, "late": 1}


def test_requests_join_and_leave_between_steps() -> None:
    scheduler = create_scheduler(FCFS, max_num_seqs=2)
    add_requests(scheduler, [10, 10, 10], max_tokens=2)
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 10, "r1": 10}
    _, events = run_step(scheduler)
    assert ids(events.finished) == ["r0", "r1"]
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r2": 10}


def test_an_admission_leaves_the_reserve_of_blocks_free_unless_the_engine_is_empty() -> None:
    scheduler = create_scheduler(FCFS, num_blocks=10, block_size=16, watermark=0.2)
    add_requests(scheduler, [16 * 9, 16, 1], max_tokens=2)
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 16 * 9}
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 1}
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r1": 16, "r2": 1}


def test_the_rest_of_a_prompt_that_exceeds_the_budget_comes_before_other_prompts() -> None:
    scheduler = create_scheduler(FCFS, token_budget=50)
    add_requests(scheduler, [80, 10, 30], max_tokens=2)
    steps = run_to_end(scheduler)
    assert steps[:3] == [{"r0": 50}, {"r0": 30, "r1": 10}, {"r2": 30}]


@pytest.mark.parametrize("watermark", [-0.1, 1.0, 2.0])
def test_a_reserve_that_is_no_share_of_the_cache_is_refused_by_name(watermark: float) -> None:
    with pytest.raises(InputError, match="watermark"):
        create_scheduler(FCFS, watermark=watermark)
