"""What holds for requests and their cache between any two calls, given what was sampled for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from schedulers.conformance.rules import BrokenRule, Rule
from schedulers.errors import SchedulerError
from schedulers.kv_cache import KVCache
from schedulers.request import FinishReason, Request, Status


def check_blocks(cache: KVCache, live: Iterable[Request]) -> None:
    """Every block is free, cached or owned."""
    try:
        cache.check_integrity(live)
    except SchedulerError as error:
        raise BrokenRule(Rule.BLOCKS, str(error)) from error


def check_request(request: Request, output: Sequence[int]) -> None:
    """A live request's fields agree with each other and with `output`, the tokens sampled for it that counted."""
    if request.output_token_ids != output:
        raise BrokenRule(Rule.TOKENS, f"{request!r} has produced {request.output_token_ids}, and {output} was sampled")
    sound = (
        request.status is not Status.FINISHED
        and request.num_tokens == request.num_prompt_tokens + len(output)
        and len(request.token_times) == len(output)
        and 0 <= request.num_computed_tokens < request.num_tokens <= request.token_limit
    )
    if not sound:
        raise BrokenRule(Rule.STATE, f"{request!r} is live after {len(output)} tokens of output")
    if request.num_computed_tokens > request.block_capacity:
        raise BrokenRule(Rule.BLOCKS, f"{request!r} holds {request.num_computed_tokens} tokens in too few blocks")
    if request.status is not Status.RUNNING and (request.block_ids or request.num_computed_tokens):
        raise BrokenRule(Rule.BLOCKS, f"{request!r} does not run and owns the blocks {request.block_ids}")


def check_counters(cache: KVCache, everyone: Sequence[Request]) -> None:
    """Hits are counted once, for admissions that lasted, and apart from hits after preemptions."""
    hits = sum(request.num_cached_tokens for request in everyone)
    rehits = sum(request.num_recached_tokens for request in everyone)
    if (cache.num_hit_tokens, cache.num_rehit_tokens) != (hits, rehits) or hits > cache.num_lookup_tokens:
        raise BrokenRule(
            Rule.STATE,
            f"the cache counts {cache.num_hit_tokens} tokens found and {cache.num_rehit_tokens} found again, "
            f"the requests {hits} and {rehits}",
        )


def cut(request: Request, sampled: Sequence[int]) -> tuple[list[int], FinishReason | None]:
    """The rule of stopping, told independently: which of the sampled tokens count, and whether they end the request."""
    accepted: list[int] = []
    for token in sampled:
        accepted.append(token)
        num_output = len(request.output_token_ids) + len(accepted)
        eos = token == request.eos_token_id and not request.ignore_eos
        if (eos or token in request.stop_token_ids) and num_output >= request.min_tokens:
            return accepted, FinishReason.STOP
        if request.num_prompt_tokens + num_output == request.token_limit:
            return accepted, FinishReason.LENGTH
    return accepted, None
