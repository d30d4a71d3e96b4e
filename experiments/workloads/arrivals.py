"""When requests arrive that wait for nobody."""

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

    def times_s(self, num_requests: int, rate: float, generator: Generator) -> NDArray[np.float64]:
        """When each arrives, in seconds from the start, ascending, at a mean rate of `rate` a second."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Arrivals that know nothing of each other: exponential gaps, coefficient of variation 1.

    Another rate is the same story, faster.
    """

    def times_s(self, num_requests: int, rate: float, generator: Generator) -> NDArray[np.float64]:
        """Sums of exponential gaps of mean 1 / `rate`."""
        return np.cumsum(generator.standard_exponential(num_requests)) / rate

    def __str__(self) -> str:
        return "Poisson arrivals"


@dataclass(frozen=True)
class Gamma:
    """Gamma-distributed gaps: `cv`, their coefficient of variation, above 1 for bursts and below 1 for regularity.

    Another rate is the same story, faster.
    """

    cv: float

    def __post_init__(self) -> None:
        checks.positive("workload.arrivals.cv", self.cv)
        # Beyond these, cv^2 or its inverse leaves what a float holds, and a run sees one burst or a clockwork anyway.
        if not 1e-3 <= self.cv <= 1e3:
            raise InputError(f"workload.arrivals.cv={self.cv:g}: it must be between 0.001 and 1000")

    def times_s(self, num_requests: int, rate: float, generator: Generator) -> NDArray[np.float64]:
        """Sums of gaps of mean 1 and standard deviation `cv` (shape 1 / cv^2, scale cv^2), divided by `rate`."""
        variance = self.cv**2
        return np.cumsum(generator.standard_gamma(1 / variance, num_requests) * variance) / rate

    def __str__(self) -> str:
        return f"gamma arrivals (cv {self.cv:g})"


@dataclass(frozen=True)
class OnOff:
    """Bursts with silence between them: a Poisson process that a two-state Markov chain turns on and off.

    Time on and time off are exponential with means `on_s` and `off_s` seconds, and the first state is drawn as the
    chain's shares of time are. While it is on, requests come at rate * (on_s + off_s) / on_s, so that `rate` is the
    mean over both (H. Heffes and D. Lucantoni, 1986, for the general Markov-modulated Poisson process). Another rate
    makes the same bursts denser, and leaves when they come.
    """

    on_s: float
    off_s: float

    def __post_init__(self) -> None:
        checks.positive("workload.arrivals.on_s", self.on_s)
        checks.positive("workload.arrivals.off_s", self.off_s)

    def times_s(self, num_requests: int, rate: float, generator: Generator) -> NDArray[np.float64]:
        """Arrivals on a clock that stands still while the process is off, and then the silences put in between."""
        # Two streams: how many requests are wanted must not change when the bursts are.
        requests, phases = generator.spawn(2)
        cycle_s = self.on_s + self.off_s
        clock_s = np.cumsum(requests.standard_exponential(num_requests)) / rate * self.on_s / cycle_s
        starts_off = phases.random() * cycle_s < self.off_s
        ends_s, silences_s = np.zeros(1), phases.standard_exponential(1) * self.off_s * starts_off
        while ends_s[-1] <= clock_s[-1]:
            on_s, off_s = (phases.standard_exponential((256, 2)) * (self.on_s, self.off_s)).T
            ends_s = np.append(ends_s, ends_s[-1] + np.cumsum(on_s))
            silences_s = np.append(silences_s, silences_s[-1] + np.cumsum(off_s))
        # The k-th time on ends at ends_s[k]; silences_s[k] is all silence after it, the first one before any.
        times_s: NDArray[np.float64] = clock_s + silences_s[np.searchsorted(ends_s, clock_s, side="right") - 1]
        return times_s

    def __str__(self) -> str:
        times = (self.on_s + self.off_s) / self.on_s
        return f"on-off arrivals ({self.on_s:g} s on at {times:.3g} times the rate, {self.off_s:g} s off)"
