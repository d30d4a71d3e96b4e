"""Requests without tokens whose blocks have names all the same, those of the output among them."""

from __future__ import annotations

from typing import Any

import pytest

from schedulers import Request, Scheduler
from schedulers.decisions import Arrival
from tests.schedulers.builders import PLAIN, POLICIES, create_request, create_scheduler, run_step, run_to_end


def named(name: str, num_prompt_tokens: int, content_id: str = "chat", **fields: Any) -> Request:
    """A prompt of which only the first block has a name of its own."""
    fields = {"max_tokens": 1, "prompt_block_hashes": ("system",), "predicted_output_tokens": 1.0, **fields}
    return Request(name, 0.0, num_prompt_tokens=num_prompt_tokens, content_id=content_id, **fields)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_output", [1, 15, 23, 24, 25, 30])
def test_a_turn_without_tokens_finds_as_much_of_the_last_ones_output_as_one_with_tokens(
    policy: type[Scheduler], num_output: int
) -> None:
    def cached(first: Request, second: Request) -> int:
        scheduler = create_scheduler(policy, block_size=16)
        for request in (first, second):
            scheduler.add_request(request)
            run_to_end(scheduler)
        return second.num_cached_tokens

    conversation = [*range(40), *[PLAIN] * num_output, 91, 92, 93]
    length = len(conversation)
    told = cached(
        create_request("a", range(40), max_tokens=num_output), create_request("b", conversation, max_tokens=1)
    )
    # The last token was sampled and never computed.
    assert told == (40 + num_output - 1) // 16 * 16
    assert cached(named("a", 40, max_tokens=num_output), named("b", length)) == told
    assert cached(named("a", 40, max_tokens=num_output), named("b", length, "other chat")) == 16
    assert cached(named("a", 40, "", max_tokens=num_output), named("b", length, "")) == 16
    assert cached(named("a", 40, max_tokens=num_output), named("b", length, cache_salt="salt")) == 0


def test_a_conversation_needs_no_names_but_its_own() -> None:
    scheduler = create_scheduler(block_size=16)
    for name, num_tokens, num_cached in (("a", 40, 0), ("b", 80, 32), ("c", 200, 80)):
        request = named(name, num_tokens, prompt_block_hashes=())
        scheduler.add_request(request)
        run_to_end(scheduler)
        assert request.num_cached_tokens == num_cached


def test_names_reach_no_further_than_the_tokens_that_are_known() -> None:
    scheduler = create_scheduler(block_size=16)
    request = named("a", 40, max_tokens=None)
    scheduler.add_request(request)
    run_step(scheduler)
    assert request.block_hashes == ["system", ("chat", 1)]
    for _ in range(8):
        run_step(scheduler)
    assert request.num_tokens == 49
    assert request.block_hashes == ["system", ("chat", 1), ("chat", 2)]


def test_a_recorded_arrival_keeps_the_name_of_its_content() -> None:
    assert Arrival.of(named("a", 40)).request().content_id == "chat"
