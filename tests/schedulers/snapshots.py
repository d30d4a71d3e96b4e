"""The whole state of a scheduler and its cache, private parts included, in a form that can be compared."""

from __future__ import annotations

from typing import Any

from schedulers import KVCache, Scheduler


def snapshot(scheduler: Scheduler) -> Any:
    """All that a call which fails must leave as it was."""
    cache = scheduler.kv_cache
    return (
        snapshot_cache(cache),
        [(request.request_id, request.block_ids.copy(), request.num_computed_tokens) for request in scheduler.running],
        [request.request_id for request in scheduler.waiting],
    )


def snapshot_cache(cache: KVCache) -> Any:
    """The state of a cache."""
    return (
        cache._blank.copy(),
        list(cache._cached),
        cache._num_owners.copy(),
        cache._hash_of.copy(),
        dict(cache._block_of),
        {name: twins.copy() for name, twins in cache._twins.items()},
    )


def snapshot_free(cache: KVCache) -> Any:
    """Which free block is taken next, and which after it."""
    return cache._blank.copy(), list(cache._cached)
