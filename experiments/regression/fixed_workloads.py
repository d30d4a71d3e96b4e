"""The workloads of the regression: small, fixed for ever, and such that policies differ on them.

A change here makes every golden file out of date; add a workload rather than change one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from schedulers import SLO, Limits, Request
from schedulers.decisions import Arrival
from schedulers.step import BatchShape
from sim.tokens import EOS


@dataclass(frozen=True, slots=True)
class FixedWorkload:
    """Requests with their output lengths, and the engine that they come to.

    Attributes:
        about: what it is there for, in a few words.
    """

    name: str
    about: str
    limits: Limits
    arrivals: tuple[tuple[Arrival, int], ...]

    @property
    def digest(self) -> str:
        """Eight hex digits that change with anything in the workload, and not with fields that requests get one day."""
        told = [
            ({key: value for key, value in arrival._asdict().items() if value}, num_output_tokens)
            for arrival, num_output_tokens in self.arrivals
        ]
        return hashlib.sha256(repr((self.limits, told)).encode()).hexdigest()[:8]

    def requests(self) -> list[tuple[Request, int]]:
        """Fresh requests, each with the length of its output."""
        return [(arrival.request(), num_output_tokens) for arrival, num_output_tokens in self.arrivals]


class FixedCost:
    """A step takes 10 ms and 0.1 ms for each of its tokens, so that decisions do not depend on any device's prices."""

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds."""
        return 0.010 + 0.0001 * batch.num_tokens

    def warnings(self) -> list[str]:
        """None."""
        return []

    def describe(self) -> str:
        """What it takes."""
        return "10 ms a step and 0.1 ms a token"


class Draws:
    """Whole numbers from a seed, by the one method of `random.Random` whose values never change between Pythons."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + int(self._chance.random() * (high - low + 1))


def _arrival(
    number: int,
    arrival_s: float,
    prompt: int,
    output: int,
    *,
    priority: int = 0,
    session: str = "",
    blocks: tuple[str, ...] = (),
) -> tuple[Arrival, int]:
    """Request r`number`; clients take turns, predictions are wrong by up to a half, and every third has targets."""
    request = Request(
        f"r{number}",
        round(arrival_s, 3),
        num_prompt_tokens=prompt,
        prompt_block_hashes=blocks,
        max_tokens=2 * output,
        eos_token_id=EOS,
        priority=priority,
        client_id=("ann", "bob", "eve")[number % 3],
        session_id=session,
        slo=SLO(ttft_s=(0.1, 0.4)[number % 2], tpot_s=0.05) if number % 3 == 0 else None,
        predicted_output_tokens=max(1.0, output * (0.5 + number * 7 % 11 / 10)),
    )
    return Arrival.of(request), output


def _mixed_lengths() -> FixedWorkload:
    draws = Draws("mixed_lengths")
    arrivals = []
    for number in range(20):
        prompt = draws.between(200, 700) if number % 4 == 1 else draws.between(4, 90)
        output = draws.between(16, 30) if number % 5 == 2 else draws.between(1, 10)
        arrivals.append(_arrival(number, 0.03 * number, prompt, output))
    limits = Limits(token_budget=128, max_num_seqs=6, num_blocks=200)
    return FixedWorkload(
        "mixed_lengths", "short and long prompts and outputs, at a steady pace", limits, tuple(arrivals)
    )


def _bursts() -> FixedWorkload:
    draws = Draws("bursts")
    times = [0.0] * 8 + [0.25] * 2 + [0.6] * 8
    arrivals = [_arrival(n, time, draws.between(10, 60), draws.between(2, 9)) for n, time in enumerate(times)]
    limits = Limits(token_budget=64, max_num_seqs=4, num_blocks=100)
    return FixedWorkload("bursts", "many requests at once, then a pause", limits, tuple(arrivals))


def _shared_prefixes() -> FixedWorkload:
    draws = Draws("shared_prefixes")
    arrivals = []
    for number in range(16):
        system = number % 3  # which system prompt: two are shared, of 4 and 8 blocks, the third is everybody's own
        shared = [f"system{system}.{block}" for block in range((4, 8, 0)[system])]
        own = draws.between(5, 60)
        blocks = (*shared, *(f"r{number}.{block}" for block in range(own // 16)))
        prompt = 16 * len(shared) + own
        arrivals.append(
            _arrival(number, 0.04 * number, prompt, draws.between(2, 8), session=f"talk{system}", blocks=blocks)
        )
    limits = Limits(token_budget=96, max_num_seqs=5, num_blocks=48)
    return FixedWorkload(
        "shared_prefixes", "prompts that begin alike, in a cache too small for all", limits, tuple(arrivals)
    )


def _priorities() -> FixedWorkload:
    draws = Draws("priorities")
    arrivals = []
    for number in range(16):
        priority = (2, 2, 1, 0)[number % 4]
        arrivals.append(
            _arrival(number, 0.025 * number, draws.between(20, 80), draws.between(3, 12), priority=priority)
        )
    limits = Limits(token_budget=64, max_num_seqs=3, num_blocks=60)
    return FixedWorkload("priorities", "three classes that compete for three slots", limits, tuple(arrivals))


def _small_cache() -> FixedWorkload:
    draws = Draws("small_cache")
    arrivals = [_arrival(n, 0.02 * n, draws.between(10, 50), draws.between(8, 24), priority=n % 2) for n in range(12)]
    limits = Limits(token_budget=64, max_num_seqs=6, num_blocks=24, block_size=8, prefix_caching=False)
    return FixedWorkload(
        "small_cache", "outputs that outgrow the cache, so that requests are preempted", limits, tuple(arrivals)
    )


_MAKERS: tuple[Callable[[], FixedWorkload], ...] = (
    _mixed_lengths,
    _bursts,
    _shared_prefixes,
    _priorities,
    _small_cache,
)


def fixed_workloads() -> list[FixedWorkload]:
    """All of them."""
    return [make() for make in _MAKERS]
