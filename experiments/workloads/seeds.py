"""Random numbers of a workload: independent streams from one seed."""

from __future__ import annotations

from typing import NamedTuple

from numpy.random import PCG64, Generator, SeedSequence

from experiments.workloads import checks


class Streams(NamedTuple):
    """One generator for each thing that is drawn, so that drawing one differently leaves the others as they are."""

    arrivals: Generator
    prompts: Generator
    outputs: Generator
    classes: Generator
    #: In which order a reseeded trace hands out its rows.
    order: Generator
    prefixes: Generator
    turns: Generator
    thinking: Generator


def streams(seed: int) -> Streams:
    """The streams of `seed`, a whole number.

    Raises:
        InputError: the seed is not a whole number, 0 or above.
    """
    checks.seed("seed", seed)
    return Streams(*(Generator(PCG64(child)) for child in SeedSequence(seed).spawn(len(Streams._fields))))
