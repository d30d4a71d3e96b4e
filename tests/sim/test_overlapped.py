"""An engine that decides each step while the one before runs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from schedulers import ChunkedPrefill, Limits, Request, RequestRecord, StepRecord
from schedulers.step import BatchShape
from sim.engine import simulate
from sim.overlapped import simulate_overlapped
from sim.tokens import EOS


class OneSecond:
    """Every step takes a second."""

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        return 1.0

    def warnings(self) -> list[str]:
        return []

    def describe(self) -> str:
        return "a second a step"


def request(name: str, arrival_s: float, prompt: int, outputs: int) -> tuple[Request, int]:
    made = Request(name, arrival_s, num_prompt_tokens=prompt, max_tokens=outputs, eos_token_id=EOS)
    return made, outputs


def run(
    arrivals: list[tuple[Request, int]], *, overlapped: bool = True, slots: int = 8, blocks: int = 1000
) -> tuple[dict[str, RequestRecord], list[StepRecord]]:
    steps: list[StepRecord] = []
    ended: list[RequestRecord] = []
    scheduler = ChunkedPrefill(Limits(token_budget=100, max_num_seqs=slots, num_blocks=blocks))
    (simulate_overlapped if overlapped else simulate)(arrivals, scheduler, OneSecond(), steps.append, ended.append)
    assert scheduler.kv_cache.num_free_blocks == blocks
    return {record.request_id: record for record in ended}, steps


def test_a_lone_request_takes_as_long_as_without_overlap() -> None:
    alone = [request("a", 0.5, 250, 3)]  # prompts of 100, 100 and 50 tokens, then two decodes
    (overlapped, steps), (plain, _) = run(alone), run([request("a", 0.5, 250, 3)], overlapped=False)
    assert overlapped["a"].token_times_s == plain["a"].token_times_s == (3.5, 4.5, 5.5)
    assert [(step.num_prefill_tokens, step.num_decode_tokens) for step in steps] == [
        (100, 0), (100, 0), (50, 0), (0, 1), (0, 1),
    ]  # fmt: skip


def test_an_arrival_during_a_step_misses_the_next_one_too() -> None:
    def arrivals() -> list[tuple[Request, int]]:
        return [request("a", 0.0, 10, 9), request("b", 0.5, 10, 1)]

    records, _ = run(arrivals())
    assert (records["b"].first_scheduled_s, records["b"].token_times_s) == (1.0, (3.0,))
    records, _ = run(arrivals(), overlapped=False)
    assert (records["b"].first_scheduled_s, records["b"].token_times_s) == (1.0, (2.0,))


def test_a_slot_stays_empty_for_the_step_after_its_request_ended() -> None:
    def arrivals() -> list[tuple[Request, int]]:
        return [request("a", 0.0, 10, 2), request("c", 0.0, 10, 9), request("b", 0.0, 10, 1)]

    records, steps = run(arrivals(), slots=2)
    assert records["a"].finish_s == 2.0
    assert [step.num_decode_tokens for step in steps[:4]] == [0, 2, 1, 1]
    assert records["b"].token_times_s == (4.0,)
    records, _ = run(arrivals(), slots=2, overlapped=False)
    assert records["b"].token_times_s == (3.0,)


def test_who_waits_for_the_only_slot_goes_on_at_once() -> None:
    """Nothing can be decided ahead while the slot is taken, and the device idles for nothing longer than that."""
    records, steps = run([request("a", 0.0, 10, 2), request("b", 0.0, 10, 2)], slots=1)
    assert records["b"].token_times_s == (3.0, 4.0)
    assert [(step.start_s, step.end_s) for step in steps] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_the_engine_sleeps_while_nothing_is_there_and_wakes() -> None:
    records, steps = run([request("a", 0.0, 10, 1), request("b", 7.25, 10, 1)])
    assert [(step.start_s, step.end_s) for step in steps] == [(0.0, 1.0), (7.25, 8.25)]
    assert records["b"].finish_s == 8.25


@pytest.mark.parametrize("blocks", [13, 20, 1000])
def test_every_request_gets_every_token_whatever_the_memory(blocks: int) -> None:
    arrivals = [request(str(number), number * 0.7, 20 + 7 * number, 5 + 11 * (number % 5)) for number in range(20)]
    records, steps = run(arrivals, blocks=blocks)
    assert {name: record.num_output_tokens for name, record in records.items()} == {
        made.request_id: outputs for made, outputs in arrivals
    }
    assert all(later.start_s >= earlier.end_s for earlier, later in pairwise(steps))
    assert any(step.num_preemptions for step in steps) == (blocks < 1000)
