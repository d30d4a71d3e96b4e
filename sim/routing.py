"""Routers: which engine of a cluster serves an arrival. Each is a class that conf/router names.

A router sees every engine as it is at that instant; a real one would know it a little late. It is asked once for each
request, in order of arrival. Whoever writes one has one method to write, and may keep what he likes between calls.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from schedulers import InputError, Request
from sim.engine import SimEngine


class Router(Protocol):
    """Chooses an engine for each request. It is built with the keyword `seed`, besides its own."""

    def route(self, request: Request, engines: Sequence[SimEngine]) -> int | None:
        """The place in `engines` of the one that takes `request`.

        None: no engine yet. The request is held, with all that arrive after it, and asked for again whenever a request
        has ended.
        """
        ...


def least_outstanding(engines: Sequence[SimEngine]) -> int:
    """The engine with the fewest unfinished requests, waiting or running; the first of several."""
    return min(range(len(engines)), key=lambda index: engines[index].num_unfinished)


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self, *, seed: int = 0) -> None:
        self._next = 0

    def route(self, request: Request, engines: Sequence[SimEngine]) -> int:
        """The engine after the last one."""
        index = self._next % len(engines)
        self._next = index + 1
        return index


class Random:
    """Drawn from the seed of the run, each engine as likely as the other."""

    def __init__(self, *, seed: int = 0) -> None:
        self._draws = random.Random(seed)

    def route(self, request: Request, engines: Sequence[SimEngine]) -> int:
        """Any engine."""
        return self._draws.randrange(len(engines))


class LeastOutstanding:
    """The engine with the fewest unfinished requests: join the shortest queue (Winston 1977), by number of requests."""

    def __init__(self, *, seed: int = 0) -> None:
        pass

    def route(self, request: Request, engines: Sequence[SimEngine]) -> int:
        """The least busy engine."""
        return least_outstanding(engines)


class LeastKVUsage:
    """The engine whose requests own the fewest KV blocks; among equals, the one with the fewest unfinished requests.

    Requests that wait own nothing yet, so a burst that arrives between two steps is spread by its number alone.
    """

    def __init__(self, *, seed: int = 0) -> None:
        pass

    def route(self, request: Request, engines: Sequence[SimEngine]) -> int:
        """The engine with the most free memory."""
        return min(
            range(len(engines)),
            key=lambda index: (engines[index].scheduler.kv_cache.usage, engines[index].num_unfinished),
        )


class PrefixAffinity:
    """The engine that was sent the longest prefix of this prompt last, unless it is overloaded; else the least busy.

    The idea is that of the cache-aware routers of SGLang (its gateway's `cache_aware`) and Mooncake's conductor (Qin et
    al., FAST 2025): a prefix that was computed somewhere should be computed there again, for nothing. As in SGLang's,
    this router does not look into the caches: it remembers where it sent each block, as many as all caches hold,
    forgetting those that it met least recently. As there, an engine is overloaded when it has more than `max_lead`
    requests more than the least busy one and more than `max_ratio` times as many; those are its defaults, too.

    Args:
        max_lead: requests.
        max_ratio: 1 or above.
        seed: not used.
    """

    def __init__(self, *, max_lead: int = 64, max_ratio: float = 1.5, seed: int = 0) -> None:
        lead: Any = max_lead  # a config may say anything
        ratio: Any = max_ratio
        if not isinstance(lead, int) or isinstance(lead, bool) or lead < 0:
            raise InputError(f"router.max_lead={max_lead!r}: it must be a whole number, 0 or above")
        if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not ratio >= 1:
            raise InputError(f"router.max_ratio={max_ratio!r}: it must be a number, 1 or above")
        self._max_lead = max_lead
        self._max_ratio = max_ratio
        #: Where each block was sent last, by salt and name; least recently met first.
        self._sent_to: OrderedDict[tuple[str, Hashable], int] = OrderedDict()

    def route(self, request: Request, engines: Sequence[SimEngine]) -> int:
        """The engine that knows most of the prompt, or the least busy one."""
        names = [(request.cache_salt, name) for name in request.prompt_block_hashes]
        if request.content_id:  # what follows those blocks: a session's turns agree in it
            names.append((request.cache_salt, request.content_id))
        least = least_outstanding(engines)
        chosen = least
        for name in names:
            if name not in self._sent_to:
                break
            chosen = self._sent_to[name]
        busiest, idlest = engines[chosen].num_unfinished, engines[least].num_unfinished
        if busiest - idlest > self._max_lead and busiest > self._max_ratio * idlest:
            chosen = least
        for name in reversed(names):  # the start of a prefix outlives its end, as in the caches
            self._sent_to[name] = chosen
            self._sent_to.move_to_end(name)
        most = sum(engine.scheduler.limits.num_blocks for engine in engines)
        while len(self._sent_to) > most:
            self._sent_to.popitem(last=False)
        return chosen


class CentralQueue:
    """One queue for all engines: a request goes to an engine only when a slot is free there, to the least busy one.

    This is what M/M/c means by c servers. A policy's order and its preemptions then see only what the engines hold.
    """

    def __init__(self, *, seed: int = 0) -> None:
        pass

    def route(self, request: Request, engines: Sequence[SimEngine]) -> int | None:
        """The least busy engine if it has a free slot."""
        index = least_outstanding(engines)
        engine = engines[index]
        return index if engine.num_unfinished < engine.scheduler.limits.max_num_seqs else None
