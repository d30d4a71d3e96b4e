"""What prompts have in common: counted by hand, by brute force, by the engine's own cache, and as published."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from experiments.describe.sharing import Blocks, blocks_of, lru_hits, served_hits, share
from experiments.workloads import Fixed, MooncakeTrace, Sessions, SharedPrefixes, Synthetic, WorkloadRequest
from schedulers import InputError
from tests.shared import shared


def request(num_prompt_tokens: int, num_output_tokens: int = 1, **fields: Any) -> WorkloadRequest:
    return WorkloadRequest("r", 0.0, num_prompt_tokens, num_output_tokens, **fields)


def test_a_trace_names_all_blocks_of_a_prompt_also_a_last_one_that_is_partly_filled() -> None:
    told = request(1100, hash_ids=(4, 5, 6), trace_block_tokens=512)
    other = request(1200, hash_ids=(4, 5, 6), trace_block_tokens=512)
    assert len(blocks_of(told, 512).prompt) == 3
    assert blocks_of(told, 512).prompt == blocks_of(other, 512).prompt
    assert len(blocks_of(told, 16).prompt) == 69
    assert None not in blocks_of(told, 16).prompt


def test_blocks_of_which_nobody_knows_the_content_have_no_name() -> None:
    assert blocks_of(request(40, 30), 16) == Blocks([None, None, None], [])
    prefixed = blocks_of(request(60, 30, hash_ids=(4,), trace_block_tokens=40), 16)
    assert [name is None for name in prefixed.prompt] == [False, False, True, True]


def test_a_session_names_its_outputs_too_but_for_the_last_token() -> None:
    first = blocks_of(request(40, 25, content_id="s"), 16)
    assert first.prompt == [("s", 0), ("s", 1), None]
    assert first.output == [("s", 2), ("s", 3)]
    assert blocks_of(request(40, 24, content_id="s"), 16).output == [("s", 2)]
    assert blocks_of(request(40, 99, content_id="s", max_tokens=2), 16).output == []


def brute_force(served: list[Blocks], capacity: int | None) -> int:
    """The same by the definition: how long ago each name was last used, in different names since."""
    uses: list[Any] = []
    hits = 0
    for blocks in served:
        kept: set[Any] = set()
        for name in reversed(uses):
            if capacity is not None and len(kept) == capacity:
                break
            kept.add(name)
        for name in blocks.prompt:
            if name not in kept:
                break
            hits += 1
        uses += [name for name in (*blocks.prompt, *blocks.output) if name is not None]
    return hits


@pytest.mark.parametrize("capacity", [1, 3, 8, 20, None])
def test_the_count_is_that_of_the_least_recently_used_blocks(capacity: int | None) -> None:
    draws = Random(5)
    served = []
    for _ in range(300):
        group, length = draws.randrange(6), draws.randint(1, 6)
        served.append(Blocks([(group, place) for place in range(length)] + [None] * draws.randrange(2), []))
    assert lru_hits(served, capacity) == brute_force(served, capacity) > 0


def test_in_a_cache_of_any_size_the_engine_finds_all_full_blocks_of_a_conversation() -> None:
    chat = Sessions(
        rate=1, num_sessions=9, turns=Fixed(4), prompt=Fixed(21), output=Fixed(30),
        prefixes=SharedPrefixes(2, Fixed(100)),
    )  # fmt: skip
    requests = chat.requests(0)
    found = served_hits(requests, 16, None)
    assert found == lru_hits([blocks_of(each, 16) for each in requests], None)
    # Of the last turn: 100 + 3 * (21 + 30) - 1 tokens were computed in the turn before, which are 15 full blocks.
    assert served_hits(requests, 16, None) - served_hits(requests[:-1], 16, None) == 15


def test_a_look_up_of_the_engine_leaves_a_token_to_compute() -> None:
    same = [request(1024, hash_ids=(1, 2), trace_block_tokens=512)] * 2
    assert served_hits(same, 512, None) == 1
    assert lru_hits([blocks_of(each, 512) for each in same], None) == 2


def test_a_cache_smaller_than_a_request_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"question\.cache_blocks=3: request 'r' has 65 tokens"):
        served_hits([request(64, content_id="a")], 16, 3)


def test_a_workload_that_knows_nothing_of_its_prompts_shares_nothing() -> None:
    plain = Synthetic(rate=1, num_requests=9, prompt=Fixed(99), output=Fixed(9))
    assert share(plain.requests(0), [10], None, 16) is None


def test_mooncakes_conversations_hit_as_often_as_published() -> None:
    """36.6 % of all blocks, and 21.1, 32.6 and 35.5 % with LRU caches; the engine's own cache is beside them.

    It finds no partly filled last block (36.60 for 36.64 %); such blocks do not take room either, but output does.
    """
    trace = MooncakeTrace(path=str(shared("data/mooncake/conversation_trace.jsonl.gz")))
    sharing = share(trace.requests(0), [10_000, 30_000, 50_000], None, 16)
    assert sharing is not None
    assert (sharing.block_size, sharing.num_blocks) == (512, 288_500)
    assert [round(100 * size.lru, 1) for size in sharing.sizes] == [21.1, 32.6, 35.5, 36.6]
    assert [round(100 * (size.served or 0), 2) for size in sharing.sizes] == [21.23, 32.66, 35.43, 36.6]


def test_the_engines_cache_counts_the_same_where_it_is_given_the_same() -> None:
    """Every block full, and one more token: then only the order in which a request's blocks are used differs."""
    trace = MooncakeTrace(path=str(shared("data/mooncake/conversation_trace.jsonl.gz")))
    full = [
        request(512 * len(each.hash_ids) + 1, hash_ids=each.hash_ids, trace_block_tokens=512)
        for each in trace.requests(0)
    ]
    total = sum(len(each.hash_ids) for each in full)
    hits = [served_hits(full, 512, capacity) / total for capacity in (10_000, 30_000, 50_000, None)]
    assert [round(100 * share, 2) for share in hits] == [21.16, 32.57, 35.46, 36.64]
    assert hits == pytest.approx([0.2112, 0.3257, 0.3546, 0.3664], abs=0.0005)
