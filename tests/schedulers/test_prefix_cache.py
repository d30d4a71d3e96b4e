"""What the prefix cache finds, keeps, forgets and counts."""

from __future__ import annotations

import pytest

from schedulers import InputError, KVCache, Request, Scheduler
from tests.schedulers.builders import POLICIES, add_requests, create_request, create_scheduler, run_step, run_to_end


@pytest.mark.parametrize("policy", POLICIES)
def test_an_identical_request_shares_all_full_blocks_and_each_has_two_owners(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, block_size=16)
    first, second = add_requests(scheduler, [range(55), range(55)])
    run_step(scheduler)
    assert len(first.block_ids) == 4
    assert first.num_full_blocks == 3
    assert second.num_cached_tokens == 48
    assert second.block_ids[:3] == first.block_ids[:3]
    assert second.block_ids[3] != first.block_ids[3]
    assert [scheduler.kv_cache.num_owners(block_id) for block_id in first.block_ids] == [2, 2, 2, 1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_wholly_cached_prompt_of_whole_blocks_computes_its_last_block(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, block_size=16, max_num_seqs=1)
    first, second = add_requests(scheduler, [range(48), range(48)], max_tokens=1)
    steps = run_to_end(scheduler)
    assert steps == [{"r0": 48}, {"r1": 16}]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)


def test_a_prompt_of_one_block_or_less_computes_at_least_one_token() -> None:
    scheduler = create_scheduler(block_size=1)
    first, second, third = add_requests(scheduler, [[5], [5], [5, 6]], max_tokens=1)
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 1, "r1": 1, "r2": 1}
    assert [request.num_cached_tokens for request in (first, second, third)] == [0, 0, 1]


def test_the_second_of_two_equal_prompts_shares_the_blocks_that_the_first_fills_in_the_same_step() -> None:
    scheduler = create_scheduler(block_size=16, token_budget=60, max_chunk=40)
    first, second = add_requests(scheduler, [range(100), range(100)])
    output, _ = run_step(scheduler)
    assert output.num_scheduled_tokens == {"r0": 40, "r1": 20}
    assert second.num_cached_tokens == 32  # the two blocks that 40 tokens fill
    assert second.block_ids[:2] == first.block_ids[:2]


@pytest.mark.parametrize(("salt", "num_cached"), [("a", 48), ("b", 0), ("", 0)])
@pytest.mark.parametrize("named", [False, True])
def test_only_requests_of_the_same_salt_share(salt: str, num_cached: int, *, named: bool) -> None:
    def request(name: str, cache_salt: str) -> Request:
        if named:
            names = ("x", "y", "z")
            return Request(name, 0.0, num_prompt_tokens=55, prompt_block_hashes=names, cache_salt=cache_salt)
        return create_request(name, range(55), cache_salt=cache_salt)

    scheduler = create_scheduler(block_size=16)
    scheduler.add_request(request("first", "a"))
    run_step(scheduler)
    second = request("second", salt)
    scheduler.add_request(second)
    run_step(scheduler)
    assert second.num_cached_tokens == num_cached


@pytest.mark.parametrize("policy", POLICIES)
def test_without_prefix_caching_nothing_is_ever_found(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, prefix_caching=False)
    requests = add_requests(scheduler, [range(55)] * 3, max_tokens=2)
    run_to_end(scheduler)
    assert [request.num_cached_tokens for request in requests] == [0, 0, 0]
    assert scheduler.kv_cache.num_hit_tokens == 0


def test_the_hit_rate_is_unknown_until_something_was_looked_up_and_then_a_share() -> None:
    scheduler = create_scheduler(block_size=16, max_num_seqs=1)
    assert scheduler.kv_cache.hit_rate is None
    add_requests(scheduler, [range(64), range(64)], max_tokens=1)
    run_step(scheduler)
    assert scheduler.kv_cache.hit_rate == 0.0
    run_step(scheduler)
    assert scheduler.kv_cache.hit_rate == 48 / 128


def test_a_cache_that_is_off_has_no_hit_rate() -> None:
    scheduler = create_scheduler(prefix_caching=False)
    add_requests(scheduler, [range(55)])
    run_step(scheduler)
    assert scheduler.kv_cache.hit_rate is None


def test_a_request_that_must_not_read_the_cache_does_not_count_as_a_look_up() -> None:
    scheduler = create_scheduler()
    add_requests(scheduler, [range(55)], prompt_logprobs=True)
    run_step(scheduler)
    assert scheduler.kv_cache.hit_rate is None


def test_of_two_blocks_with_the_same_content_either_can_be_evicted_and_the_other_is_still_found() -> None:
    cache = KVCache(num_blocks=5, block_size=4)
    # Two equal requests, neither of which may read what the other fills.
    first, second, third = (create_request(name, range(6), prompt_logprobs=True) for name in ("r0", "r1", "r2"))
    for request in (first, second):
        cache.admit(request, [])
        assert cache.allocate(request, 6)
    reader = create_request("reader", range(6))
    assert cache.find_prefix(reader) == first.block_ids[:1]
    cache.free(first)
    cache.admit(third, [])
    assert cache.allocate(third, 6)  # two blank blocks are left
    filler = create_request("filler", 1)
    cache.admit(filler, [])
    assert cache.allocate(filler, 1)  # takes the first's
    assert cache.find_prefix(reader) == second.block_ids[:1]
    cache.free(second)
    cache.free(third)
    cache.check_integrity([filler])
    assert len(cache.find_prefix(reader)) == 1


def test_the_least_recently_used_block_is_evicted_first_and_the_end_of_a_prefix_before_its_start() -> None:
    scheduler = create_scheduler(num_blocks=5, block_size=4, max_num_seqs=1)

    def serve(prompt: range) -> None:
        scheduler.add_request(create_request("r", prompt, max_tokens=1))
        run_to_end(scheduler)

    def num_cached(prompt: range) -> int:
        return scheduler.kv_cache.num_cached_tokens(create_request("probe", prompt))

    old, recent = range(9), range(50, 59)
    serve(old)
    serve(recent)  # two full blocks each; one block is blank
    serve(range(90, 94))
    assert [num_cached(old), num_cached(recent)] == [8, 8]
    serve(range(80, 84))
    assert [num_cached(old), num_cached(recent)] == [4, 8]
    serve(range(70, 74))
    assert [num_cached(old), num_cached(recent)] == [0, 8]


def test_a_block_that_is_found_is_not_evicted_to_make_room_for_its_finder() -> None:
    scheduler = create_scheduler(num_blocks=3, block_size=4, max_num_seqs=1)
    add_requests(scheduler, [range(9), range(50, 54)], max_tokens=1)
    run_to_end(scheduler)  # three full blocks are cached, and those of the first are older
    again = create_request("again", range(9), max_tokens=3)
    scheduler.add_request(again)
    assert run_step(scheduler)[0].num_scheduled_tokens == {"again": 1}
    scheduler.kv_cache.check_integrity([again])


def test_resetting_the_cache_forgets_everything_and_is_refused_while_blocks_are_owned() -> None:
    scheduler = create_scheduler(block_size=16, max_num_seqs=1)
    (request,) = add_requests(scheduler, [range(55)], max_tokens=2)
    run_step(scheduler)
    with pytest.raises(InputError, match="4 blocks"):
        scheduler.kv_cache.reset()
    scheduler.kv_cache.check_integrity([request])
    run_to_end(scheduler)
    assert scheduler.kv_cache.num_cached_tokens(create_request("probe", range(55))) == 48
    scheduler.kv_cache.reset()
    assert scheduler.kv_cache.num_cached_tokens(create_request("probe", range(55))) == 0
    assert scheduler.kv_cache.num_free_blocks == scheduler.kv_cache.num_blocks
    scheduler.kv_cache.check_integrity([])


@pytest.mark.parametrize("policy", POLICIES)
def test_prompt_logprobs_compute_the_whole_prompt_and_fill_the_cache_for_others(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, block_size=16, max_num_seqs=1)
    scheduler.add_request(create_request("r0", range(55), max_tokens=1))
    scheduler.add_request(create_request("r1", range(55), max_tokens=1, prompt_logprobs=True, arrival_time=1.0))
    scheduler.add_request(create_request("r2", range(30), max_tokens=1, prompt_logprobs=True, arrival_time=2.0))
    scheduler.add_request(create_request("r3", range(55), max_tokens=1, arrival_time=3.0))
    assert run_to_end(scheduler) == [{"r0": 55}, {"r1": 55}, {"r2": 30}, {"r3": 7}]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_follow_up_turn_computes_only_what_is_not_in_full_cached_blocks(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, block_size=16)
    turn = create_request("turn 1", range(40), max_tokens=30)
    scheduler.add_request(turn)
    run_to_end(scheduler)
    conversation = [*range(40), *turn.output_token_ids, 91, 92, 93]
    scheduler.add_request(create_request("turn 2", conversation, arrival_time=100.0, max_tokens=1))
    # 40 + 30 tokens; the last was sampled and never computed: 69 in the cache, 4 full blocks.
    assert run_to_end(scheduler) == [{"turn 2": 73 - 64}]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_block_is_found_as_soon_as_a_decode_has_filled_it(policy: type[Scheduler]) -> None:
    scheduler = create_scheduler(policy, block_size=4)
    add_requests(scheduler, [range(3)], max_tokens=2)
    run_to_end(scheduler)  # computes three tokens, then a fourth
    assert scheduler.kv_cache.num_cached_tokens(create_request("next", [0, 1, 2, 7, 9])) == 4


def test_hits_after_a_preemption_are_counted_apart_from_hits_between_requests() -> None:
    scheduler = create_scheduler(num_blocks=7, block_size=4, max_num_seqs=2)
    requests = add_requests(scheduler, [range(8), range(50, 58), range(8)], max_tokens=12)
    run_to_end(scheduler)
    cache = scheduler.kv_cache
    assert sum(request.num_preemptions for request in requests) > 0
    assert cache.num_rehit_tokens == sum(request.num_recached_tokens for request in requests) > 0
    assert cache.num_hit_tokens == sum(request.num_cached_tokens for request in requests)
    assert cache.num_lookup_tokens == 24  # each prompt once


def test_prompts_without_tokens_share_by_the_names_of_their_blocks() -> None:
    scheduler = create_scheduler(block_size=16)
    for name, names in (("r0", ("a", "b", "c")), ("r1", ("a", "b", "d")), ("r2", ("e", "f"))):
        scheduler.add_request(Request(name, 0.0, num_prompt_tokens=16 * len(names) + 3, prompt_block_hashes=names))
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 51, "r1": 51 - 32, "r2": 35}


def test_a_prompt_without_tokens_or_names_shares_nothing() -> None:
    scheduler = create_scheduler(block_size=16)
    for name in ("r0", "r1"):
        scheduler.add_request(Request(name, 0.0, num_prompt_tokens=50))
    assert run_step(scheduler)[0].num_scheduled_tokens == {"r0": 50, "r1": 50}


def test_the_name_of_a_last_block_that_the_prompt_does_not_fill_names_no_block() -> None:
    """Published traces name ceil(tokens / block size) blocks; output, which nobody named, completes the last one."""
    scheduler = create_scheduler(block_size=16)
    first = Request("first", 0.0, num_prompt_tokens=20, prompt_block_hashes=("a", "b"), max_tokens=20)
    scheduler.add_request(first)
    run_to_end(scheduler)
    longer = Request("longer", 1.0, num_prompt_tokens=40, prompt_block_hashes=("a", "b"))
    assert scheduler.kv_cache.num_cached_tokens(longer) == 16


def test_the_usage_is_the_share_of_owned_blocks() -> None:
    scheduler = create_scheduler(num_blocks=8, block_size=16)
    assert scheduler.kv_cache.usage == 0.0
    add_requests(scheduler, [20], max_tokens=1)
    scheduler.schedule(0.0)
    assert scheduler.kv_cache.usage == 0.25
    scheduler.abort_request("r0", 0.0)
    assert scheduler.kv_cache.usage == 0.0
