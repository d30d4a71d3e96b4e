"""What prompts have in common, and how much of it caches of several sizes would find.

Two counts, which answer two questions. `lru_hits` asks of the workload alone what a cache of so many blocks could
find: every block that its source names counts, also a last one that is partly filled, and blocks are used in the order
of the prompt. `served_hits` asks the product's own KV cache, through which the requests go one after another, as a
scheduler would send them. They differ by what an engine is:

- only full blocks can be found again, so a prompt's partly filled last one never is, and takes no place when freed;
- a look-up never returns the whole prompt, since at least one token must be computed;
- a request gives its blocks back tail first, so that the end of a prefix is forgotten before its start;
- output takes blocks too, and those that nobody can ask for again are forgotten no sooner than others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.run import to_request
from experiments.workloads import WorkloadRequest
from schedulers import InputError, KVCache

#: Sizes of caches between which the curve of hit rates is drawn.
CURVE_POINTS = 12


class Blocks(NamedTuple):
    """A request's blocks by name, None where nobody knows their content."""

    #: Of the prompt, the partly filled last one included.
    prompt: list[Hashable]
    #: Full ones that the output adds, and of which the content has a name.
    output: list[Hashable]


def blocks_of(request: WorkloadRequest, block_size: int) -> Blocks:
    """The blocks of `block_size` tokens that a request reads and writes."""
    num_prompt, num_blocks = request.num_prompt_tokens, -(-request.num_prompt_tokens // block_size)
    names: list[Hashable] = [*request.block_hashes(block_size)]
    num_full, content_id = num_prompt // block_size, request.content_id
    if content_id:
        names += [(content_id, index) for index in range(len(names), num_full)]
    elif num_full < num_blocks <= -(-len(request.hash_ids) * request.trace_block_tokens // block_size):
        names.append((request.hash_ids[-1], num_blocks))
    names += [None] * (num_blocks - len(names))
    # The last token is sampled and never computed, so it is in no block.
    num_in_the_end = (num_prompt + request.num_answer_tokens - 1) // block_size
    return Blocks(names, [(content_id, index) for index in range(num_full, num_in_the_end)] if content_id else [])


def lru_hits(served: Sequence[Blocks], capacity: int | None) -> int:
    """Blocks of prompts that a cache of the `capacity` least recently used blocks finds; None: a cache of any size.

    A block is found if it and all before it in the prompt are there.
    """
    cache: OrderedDict[Hashable, None] = OrderedDict()
    num_hits = 0
    for blocks in served:
        for name in blocks.prompt:
            if name not in cache:
                break
            num_hits += 1
        for name in (*blocks.prompt, *blocks.output):
            if name is not None:
                cache[name] = None
                cache.move_to_end(name)
        while capacity is not None and len(cache) > capacity:
            cache.popitem(last=False)
    return num_hits


def served_hits(requests: Sequence[WorkloadRequest], block_size: int, num_blocks: int | None) -> int:
    """Blocks of prompts that the engine's own KV cache finds, with requests one after another; None: one of any size.

    Raises:
        InputError: a request is larger than the whole cache.
    """
    sizes = [-(-(r.num_prompt_tokens + r.num_answer_tokens) // block_size) for r in requests]
    cache = KVCache(sum(sizes) if num_blocks is None else num_blocks, block_size)
    num_hits = 0
    for each in requests:
        request = to_request(each, block_size)
        prefix = cache.find_prefix(request)
        num_hits += len(prefix)
        cache.admit(request, prefix)
        request.num_tokens += each.num_answer_tokens
        if not cache.allocate(request, request.num_tokens - 1):
            raise InputError(
                f"question.cache_blocks={num_blocks}: {each.name} has {request.num_tokens:,} tokens, more than so "
                f"many blocks of {block_size} tokens hold"
            )
        cache.free(request)
    return num_hits


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a cache of `num_blocks` blocks finds (None: of any size), as shares of all blocks of prompts, 0 to 1.

    Attributes:
        lru: by `lru_hits`.
        served: by `served_hits`; None where it was not asked.
    """

    num_blocks: int | None
    lru: float
    served: float | None


@dataclass(frozen=True, slots=True)
class Sharing:
    """What prompts have in common; `sizes` are those asked for, `curve` goes from small caches to the largest useful.

    Attributes:
        num_blocks: of all prompts, partly filled last ones included.
        num_distinct: different ones among those with a name.
    """

    block_size: int
    num_blocks: int
    num_distinct: int
    sizes: list[CacheSize]
    curve: list[CacheSize]


def share(
    requests: Sequence[WorkloadRequest], cache_blocks: Sequence[int], block_size: int | None, engine_block_size: int
) -> Sharing | None:
    """What the prompts of requests have in common, in this order; None where the workload knows of nothing.

    Args:
        cache_blocks: sizes of the caches, in blocks.
        block_size: tokens in a block; None: that in which a trace knows its prompts, or else `engine_block_size`.

    Raises:
        InputError: as `served_hits`.
    """
    sizes_of_trace = {r.trace_block_tokens for r in requests if r.hash_ids and not r.content_id}
    own = sizes_of_trace.pop() if len(sizes_of_trace) == 1 and all(r.hash_ids for r in requests) else engine_block_size
    block_size = block_size or own
    served = [blocks_of(request, block_size) for request in requests]
    names = {name for blocks in served for name in (*blocks.prompt, *blocks.output)} - {None}
    if not names:
        return None
    num_blocks = sum(len(blocks.prompt) for blocks in served)

    def look_up(capacity: int | None, *, through_engine: bool) -> CacheSize:
        hits = served_hits(requests, block_size, capacity) / num_blocks if through_engine else None
        return CacheSize(capacity, lru_hits(served, capacity) / num_blocks, hits)

    return Sharing(
        block_size,
        num_blocks,
        len(names),
        [look_up(capacity, through_engine=True) for capacity in (*cache_blocks, None)],
        [look_up(capacity, through_engine=False) for capacity in _curve_sizes(served, len(names))],
    )


def _curve_sizes(served: Sequence[Blocks], num_distinct: int) -> list[int]:
    """Cache sizes from that of the largest request to that of everything, each by the same factor larger."""
    largest = max(len(blocks.prompt) for blocks in served)
    ends = sorted((largest, num_distinct))
    return sorted({round(size) for size in np.geomspace(ends[0], ends[1], CURVE_POINTS).tolist()})
