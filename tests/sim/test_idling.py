"""How long an engine had nothing to do before a step, as it tells the cost model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import simpy

from schedulers import ChunkedPrefill, Limits, Request
from schedulers.step import BatchShape
from sim.engine import SimEngine, simulate
from sim.overlapped import simulate_overlapped
from sim.tokens import EOS, TokenSource

LIMITS = Limits(token_budget=64, max_num_seqs=4, num_blocks=64, block_size=16)


class Watching:
    """Every step takes a second."""

    def __init__(self) -> None:
        self.idle_s: list[float] = []

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        self.idle_s.append(idle_s)
        return 1.0

    def warnings(self) -> list[str]:
        return []

    def describe(self) -> str:
        return "one second"


def request(request_id: str, at: float) -> Request:
    return Request(request_id, at, num_prompt_tokens=8, eos_token_id=EOS)


# The first two are served until 4.5, or, as an overlapped engine joins the second a step later, 5.5. The last comes in
# the instant in which the third ends.
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (simulate, [math.inf, 0.0, 0.0, 2.5, 0.0, 0.0, 0.0]),
        (simulate_overlapped, [math.inf, 0.0, 0.0, 0.0, 1.5, 0.0, 0.0, 0.0]),
    ],
)
def test_a_step_is_priced_with_how_long_the_engine_idled_before_it(
    run: Callable[..., object], expected: list[float]
) -> None:
    cost = Watching()
    arrivals = [(request(f"r{at}", at), 2) for at in (1.5, 2.0, 7.0, 9.0)]
    run(arrivals, ChunkedPrefill(LIMITS), cost, lambda _: None, lambda _: None)
    assert cost.idle_s == expected


def test_an_engine_idles_from_the_end_of_the_step_in_which_its_last_request_was_aborted() -> None:
    cost, env = Watching(), simpy.Environment()
    engine = SimEngine(env, ChunkedPrefill(LIMITS), cost, TokenSource(), lambda _: None, lambda _: None)

    def clients() -> simpy.events.ProcessGenerator:
        yield env.timeout(1.0)
        engine.submit(request("r0", 1.0), 8)
        yield env.timeout(0.5)
        engine.abort("r0")
        yield env.timeout(2.5)
        engine.submit(request("r1", 4.0), 1)

    env.process(clients())
    env.run()
    assert cost.idle_s == [math.inf, 2.0]
