"""The paged KV cache: who owns which block, and which full blocks can be found again by their content.

This is bookkeeping only: the tensors live in the workers, addressed by the block ids handed out here.

A block is in exactly one of three states:

    blank    free, content worthless          taken first
    cached   free, full of computed content   taken when no blank one is left, least recently used first
    owned    in the block table of one request or of several that share a prefix
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from schedulers.errors import InputError, SchedulerError
from schedulers.request import Request


class KVCache:
    """Allocates fixed-size blocks to requests and keeps full ones findable after they are freed.

    A full block is named by a chain of SHA-256 hashes (parent hash, its tokens; the salt starts the chain), so equal
    names mean equal prefixes. Requests without token ids bring the names of their blocks with them. Full blocks without
    a name are taken to be unlike any other: they age like the rest, and get one when their owner is preempted.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        """Start with `num_blocks` blank blocks of `block_size` tokens each."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._blank = list(range(num_blocks - 1, -1, -1))
        #: Free blocks that are full, least recently used first.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._num_owners = [0] * num_blocks
        self._hash_of: list[Hashable | None] = [None] * num_blocks
        self._block_of: dict[Hashable, int] = {}
        #: Further blocks with the same content as one in `_block_of`; each can take its place.
        self._twins: dict[Hashable, list[int]] = {}
        #: Tokens that first admissions looked up and found, and that returns from preemption found.
        self.num_lookup_tokens = 0
        self.num_hit_tokens = 0
        self.num_rehit_tokens = 0

    # -- what is there ------------------------------------------------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody owns, cached ones included."""
        return len(self._blank) + len(self._cached)

    @property
    def usage(self) -> float:
        """Share of the blocks that requests own, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks

    @property
    def hit_rate(self) -> float | None:
        """Share of looked-up tokens that were found, over first admissions; None while nothing was looked up."""
        return self.num_hit_tokens / self.num_lookup_tokens if self.num_lookup_tokens else None

    def num_owners(self, block_id: int) -> int:
        """How many requests have the block in their table."""
        return self._num_owners[block_id]

    # -- look up ------------------------------------------------------------------------------------------------------

    def find_prefix(self, request: Request) -> list[int]:
        """The blocks that already hold the start of `request`, in order; nothing is changed.

        Never covers all of its tokens: at least one is left to compute, since only computing yields the next token.
        """
        if not self.prefix_caching or request.prompt_logprobs:
            return []
        found = []
        hashes = request.block_hashes
        block_of = self._block_of
        for index in range((request.num_tokens - 1) // self.block_size):
            if index == len(hashes) and not self._extend_hashes(request):
                break
            block_id = block_of.get(hashes[index])
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_cached_tokens(self, request: Request) -> int:
        """Tokens of `request` that an admission now would find."""
        return len(self.find_prefix(request)) * self.block_size

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks nobody owns."""
        return sum(not self._num_owners[block_id] for block_id in block_ids)

    # -- take and give back -------------------------------------------------------------------------------------------

    def admit(self, request: Request, prefix: Sequence[int]) -> None:
        """Make `request` an owner of the blocks that `find_prefix` found."""
        for block_id in prefix:
            if not self._num_owners[block_id]:
                del self._cached[block_id]
            self._num_owners[block_id] += 1
        request.block_ids = list(prefix)
        request.num_full_blocks = len(prefix)
        request.block_capacity = request.num_computed_tokens = len(prefix) * self.block_size

    def count_hit(self, request: Request) -> None:
        """Count what a request just admitted, and not sent back within the step, looked up and found."""
        if not self.prefix_caching or request.prompt_logprobs:
            return
        num_hit = request.num_computed_tokens
        if request.num_preemptions:
            self.num_rehit_tokens += num_hit
            request.num_recached_tokens += num_hit
        else:
            self.num_lookup_tokens += request.num_tokens
            self.num_hit_tokens += num_hit
            request.num_cached_tokens = num_hit

    def allocate(self, request: Request, end: int) -> bool:
        """Give `request` blocks for its first `end` tokens; False, and nothing changed, if too few are free.

        Blocks that the coming step fills are findable at once: another request of the same step may share them, since
        a step writes keys and values before it reads them.
        """
        num_new = -(-end // self.block_size) - len(request.block_ids)
        if num_new > 0:
            blank, cached = self._blank, self._cached
            if num_new > len(blank) + len(cached):
                return False
            for _ in range(num_new):
                if blank:
                    block_id = blank.pop()
                else:
                    block_id, _ = cached.popitem(last=False)
                    if self._hash_of[block_id] is not None:
                        self._drop_hash(block_id)
                self._num_owners[block_id] = 1
                request.block_ids.append(block_id)
            request.block_capacity += num_new * self.block_size
        if self.prefix_caching:
            self._register(request, end)
        return True

    def name_own(self, request: Request) -> None:
        """Give the unnamed blocks of a request that will come back names of its own, by which it alone finds them."""
        hashes = request.block_hashes
        for index in range(len(hashes), request.num_full_blocks):
            block_id, name = request.block_ids[index], (request, index)
            hashes.append(name)
            self._hash_of[block_id], self._block_of[name] = name, block_id

    def free(self, request: Request) -> None:
        """Take all blocks from `request`, tail first, so that the start of a prefix outlives its end."""
        num_owners, cached, num_full = self._num_owners, self._cached, request.num_full_blocks
        for block_id in reversed(request.block_ids[num_full:]):  # which nobody shares
            num_owners[block_id] = 0
            self._blank.append(block_id)
        for block_id in reversed(request.block_ids[:num_full]):
            num_left = num_owners[block_id] = num_owners[block_id] - 1
            if not num_left:
                cached[block_id] = None
        request.block_ids = []
        request.block_capacity = 0
        request.num_full_blocks = 0

    def blocks_filled_by_step(self, request: Request) -> list[int]:
        """Full blocks of `request` whose content the step in progress has yet to compute."""
        return request.block_ids[request.num_computed_tokens // self.block_size : request.num_full_blocks]

    def forget_filled_by_step(self, request: Request) -> None:
        """Make those blocks worthless again, because their content will not be computed after all."""
        unwritten = self.blocks_filled_by_step(request)
        for block_id in unwritten:
            if self._hash_of[block_id] is not None:
                self._drop_hash(block_id)
        request.num_full_blocks -= len(unwritten)

    def reset(self) -> None:
        """Forget all cached content.

        Raises:
            InputError: requests own blocks.
        """
        num_owned = self.num_blocks - self.num_free_blocks
        if num_owned:
            raise InputError(
                f"the prefix cache cannot be reset while requests own {num_owned} blocks; finish or abort them first"
            )
        for block_id in self._cached:
            self._hash_of[block_id] = None
        self._block_of.clear()
        self._twins.clear()
        self._blank.extend(self._cached)
        self._cached.clear()

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Check that every block is blank, cached or owned, given all requests that may own some.

        Raises:
            SchedulerError: naming the block and what is wrong with it.
        """
        num_owners = [0] * self.num_blocks
        for request in requests:
            if request.block_capacity != len(request.block_ids) * self.block_size:
                raise SchedulerError(
                    f"{request!r}: block capacity {request.block_capacity} with {len(request.block_ids)} blocks"
                )
            if len(set(request.block_ids)) != len(request.block_ids):
                raise SchedulerError(f"{request!r} has a block twice in its table: {request.block_ids}")
            for block_id in request.block_ids:
                num_owners[block_id] += 1
        free = self._blank + list(self._cached)
        if len(set(free)) != len(free):
            raise SchedulerError("a block is twice in the free lists")
        is_free = set(free)
        for block_id, owners in enumerate(num_owners):
            if owners != self._num_owners[block_id]:
                raise SchedulerError(
                    f"block {block_id} is in {owners} block tables but counts {self._num_owners[block_id]} owners"
                )
            if (owners == 0) != (block_id in is_free):
                raise SchedulerError(
                    f"block {block_id} has {owners} owners and is {'' if block_id in is_free else 'not '}free"
                )
        named = {block_id: name for name, block_id in self._block_of.items()}
        named.update((block_id, name) for name, twins in self._twins.items() for block_id in twins)
        for block_id, name in enumerate(self._hash_of):
            if named.get(block_id) != name:
                raise SchedulerError(f"block {block_id} is named {name!r} but found as {named.get(block_id)!r}")
        for block_id in self._blank:
            if self._hash_of[block_id] is not None:
                raise SchedulerError(f"block {block_id} is blank and has a name")

    # -- names of blocks ----------------------------------------------------------------------------------------------

    def _extend_hashes(self, request: Request) -> bool:
        """Name further full blocks of `request`; False when no more of its content is known."""
        prompt = request.prompt_token_ids
        if prompt is None:
            return self._extend_names(request)
        hashes, size = request.block_hashes, self.block_size
        start = len(hashes) * size
        end = start + size
        if end > request.num_tokens:
            return False
        num_prompt = request.num_prompt_tokens
        tokens = list(prompt[start:end])
        if end > num_prompt:
            tokens += request.output_token_ids[max(start - num_prompt, 0) : end - num_prompt]
        parent: Any = hashes[-1] if hashes else hashlib.sha256(request.cache_salt.encode()).digest()
        hashes.append(hashlib.sha256(parent + array("q", tokens).tobytes()).digest())
        return True

    def _extend_names(self, request: Request) -> bool:
        """Take further names of blocks from a request without tokens: those of its prompt, then one by one."""
        hashes, names, salt = request.block_hashes, request.prompt_block_hashes, request.cache_salt
        index, size = len(hashes), self.block_size
        new: Sequence[Hashable] = names[: request.num_prompt_tokens // size] if names and not index else ()
        if not new and request.content_id and (index + 1) * size <= request.num_tokens:
            new = ((request.content_id, index),)
        if not new:
            return False
        hashes.extend([(salt, name) for name in new] if salt else new)
        return True

    def _register(self, request: Request, end: int) -> None:
        """Make the blocks that are full once `end` tokens are computed findable, those whose content has a name."""
        index = request.num_full_blocks
        hashes = request.block_hashes
        num_full = end // self.block_size
        while index < num_full and (index < len(hashes) or self._extend_hashes(request)):
            block_id, name = request.block_ids[index], hashes[index]
            self._hash_of[block_id] = name
            if self._block_of.setdefault(name, block_id) != block_id:
                self._twins.setdefault(name, []).append(block_id)
            index += 1
        request.num_full_blocks = num_full

    def _drop_hash(self, block_id: int) -> None:
        name = self._hash_of[block_id]
        self._hash_of[block_id] = None
        if not self._twins:
            del self._block_of[name]
            return
        twins = self._twins.get(name)
        if self._block_of[name] == block_id:
            if twins:
                self._block_of[name] = twins.pop(0)
            else:
                del self._block_of[name]
        elif twins is not None:
            twins.remove(block_id)
        if twins is not None and not twins:
            del self._twins[name]
