"""Prompts that begin alike: a number of system prompts, some more popular than others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from experiments.workloads import checks
from experiments.workloads.clients import LENGTHS
from experiments.workloads.lengths import Lengths


@dataclass(frozen=True)
class SharedPrefixes:
    """`num_prefixes` system prompts; each request begins with one of them, and its own prompt comes after.

    Popularity follows Zipf's law: the k-th most popular is chosen in proportion to k ** -exponent; 0 makes all of them
    equally popular. What a prefix says, and how long it is, is the same for all that begin with it.
    """

    num_prefixes: int
    tokens: Lengths
    exponent: float = 1.0

    def __post_init__(self) -> None:
        checks.count("workload.prefixes.num_prefixes", self.num_prefixes)
        checks.made("workload.prefixes.tokens", self.tokens, "tokens", LENGTHS)
        checks.not_negative("workload.prefixes.exponent", self.exponent)

    def draw(self, number: int, generator: Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The prefix of each of `number` requests, 0 being the most popular, and its length; shape (number,) each."""
        lengths = self.tokens.tokens(generator.random(self.num_prefixes))
        weights = np.arange(1, self.num_prefixes + 1, dtype=np.float64) ** -self.exponent
        upper_ends = np.cumsum(weights / weights.sum())[:-1]
        chosen = np.searchsorted(upper_ends, generator.random(number), side="right")
        return chosen, lengths[chosen]

    def __str__(self) -> str:
        return f"{self.num_prefixes:,} shared prefixes of {self.tokens} (Zipf {self.exponent:g})"
