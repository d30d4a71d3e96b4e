"""Alternating: decodes and prompt chunks by turns."""

from __future__ import annotations

from schedulers import Alternating
from tests.schedulers.builders import create_request, create_scheduler, run_step


def test_decodes_and_chunks_take_turns_and_never_share_a_step() -> None:
    scheduler = create_scheduler(Alternating, token_budget=50)
    scheduler.add_request(create_request("a", 20))
    run_step(scheduler)
    scheduler.add_request(create_request("b", 120))
    steps = [run_step(scheduler)[0].num_scheduled_tokens for _ in range(7)]
    assert steps == [{"a": 1}, {"b": 50}, {"a": 1}, {"b": 50}, {"a": 1}, {"b": 20}, {"a": 1, "b": 1}]


def test_chunks_follow_each_other_while_nobody_decodes() -> None:
    scheduler = create_scheduler(Alternating, token_budget=50)
    scheduler.add_request(create_request("a", 120))
    assert [run_step(scheduler)[0].num_scheduled_tokens for _ in range(4)] == [
        {"a": 50},
        {"a": 50},
        {"a": 20},
        {"a": 1},
    ]
