"""When requests arrive. Gaps are drawn with mean 1 and divided by the rate: another rate is the same story, faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from experiments.workloads import checks
from schedulers.errors import InputError


class Arrivals(Protocol):
    """A stationary process of arrivals."""

    def gaps(self, num_requests: int, generator: Generator) -> NDArray[np.float64]:
        """Times between arrivals, of mean 1, the first counted from the start; shape (num_requests,)."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Arrivals that know nothing of each other: exponential gaps, coefficient of variation 1."""

    def gaps(self, num_requests: int, generator: Generator) -> NDArray[np.float64]:
        """Exponential gaps of mean 1."""
        return generator.standard_exponential(num_requests)

    def __str__(self) -> str:
        return "Poisson arrivals"


@dataclass(frozen=True)
class Gamma:
    """Gamma-distributed gaps: `cv`, their coefficient of variation, above 1 for bursts and below 1 for regularity."""

    cv: float

    def __post_init__(self) -> None:
        checks.positive("workload.arrivals.cv", self.cv)
        # Beyond these, cv^2 or its inverse leaves what a float holds, and a run sees one burst or a clockwork anyway.
        if not 1e-3 <= self.cv <= 1e3:
            raise InputError(f"workload.arrivals.cv={self.cv:g}: it must be between 0.001 and 1000")

    def gaps(self, num_requests: int, generator: Generator) -> NDArray[np.float64]:
        """Gaps of mean 1 and standard deviation `cv`: shape 1 / cv^2, scale cv^2."""
        variance = self.cv**2
        return generator.standard_gamma(1 / variance, num_requests) * variance

    def __str__(self) -> str:
        return f"gamma arrivals (cv {self.cv:g})"
