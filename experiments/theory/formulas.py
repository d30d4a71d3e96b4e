"""Closed forms of queueing theory: mean waits and mean times in system of Poisson arrivals at rate `rate`.

Times are in the unit of the service times. A wait is from arrival to the first service, a time in system from arrival
to the end. Every queue must be stable: its load, rate times mean service time, below the number of servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import factorial

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """One class of jobs: how many a second, and the first two moments of their service times."""

    rate: float
    mean_s: float
    square_s: float

    @property
    def load(self) -> float:
        """The share of a server's time that they take."""
        return self.rate * self.mean_s


def first_come_wait(traffic: Traffic) -> float:
    """Mean wait in M/G/1, first come first served (Pollaczek 1930, Khinchine 1932): rate E[S^2] / (2 (1 - load))."""
    return traffic.rate * traffic.square_s / (2 * (1 - traffic.load))


def pool_wait(rate: float, mean_s: float, servers: int) -> float:
    """Mean wait in M/M/c with one queue (Erlang 1917): the chance that all are busy over (c / mean_s - rate)."""
    offered = rate * mean_s
    all_busy = offered**servers / factorial(servers) * servers / (servers - offered)
    some_free = sum(offered**k / factorial(k) for k in range(servers))
    return all_busy / (some_free + all_busy) / (servers / mean_s - rate)


def priority_waits(classes: Sequence[Traffic]) -> list[float]:
    """Mean wait of each class in M/G/1 with non-preemptive priorities, most urgent first (Cobham 1954).

    What is left of the job in service, over all classes, divided by (1 - load of the more urgent) (1 - that and its
    own).
    """
    residual = sum(kind.rate * kind.square_s for kind in classes) / 2
    above, waits = 0.0, []
    for kind in classes:
        waits.append(residual / ((1 - above) * (1 - above - kind.load)))
        above += kind.load
    return waits


def preemptive_times(classes: Sequence[Traffic]) -> list[float]:
    """Mean time in system of each class in M/G/1 with preemptive-resume priorities, most urgent first.

    White and Christie, "Queuing with preemptive priorities or with breakdown", Operations Research 1958. Less urgent
    classes do not count: the own service, drawn out by what comes in above it, and the wait behind the own class and
    those above.
    """
    above, residual, times = 0.0, 0.0, []
    for kind in classes:
        residual += kind.rate * kind.square_s / 2
        times.append(kind.mean_s / (1 - above) + residual / ((1 - above) * (1 - above - kind.load)))
        above += kind.load
    return times


def shortest_first_wait(rate: float) -> float:
    """Mean wait in M/M/1 with mean service 1, shortest job first, not preemptive (Phipps 1956).

    A job of length x waits residual / (1 - load(x))^2, where load(x) is that of jobs shorter than x: Cobham with a
    class for every length. For exponential services residual is the rate, and load(x) = rate (1 - (1 + x) e^-x).
    """
    return _integral(lambda x: np.exp(-x) * rate / (1 - _load_below(rate, x)) ** 2)


def shortest_remaining_time(rate: float) -> float:
    """Mean time in system in M/M/1 with mean service 1, shortest remaining processing time, preemptive.

    Schrage and Miller, "The queue M/G/1 with the shortest remaining processing time discipline", Operations Research
    1966. A job of length x waits rate (m2(x) + x^2 (1 - F(x))) / (2 (1 - load(x))^2) for its first service, m2(x) being
    the second moment of services up to x, and then takes the integral of 1 / (1 - load(t)) over t up to x.
    """
    x = _GRID
    squares = 2 - (2 + 2 * x + x**2) * np.exp(-x)
    wait = rate * (squares + x**2 * np.exp(-x)) / (2 * (1 - _load_below(rate, x)) ** 2)
    pace = 1 / (1 - _load_below(rate, x))
    stay = np.concatenate(([0.0], np.cumsum((pace[1:] + pace[:-1]) / 2 * np.diff(x))))
    return float(np.trapezoid(np.exp(-x) * (wait + stay), x))


#: Where integrals over an exponential service time of mean 1 are evaluated; beyond the end lies a share of 4e-18.
_GRID: Floats = np.linspace(0.0, 40.0, 400_001)


def _load_below(rate: float, x: Floats) -> Floats:
    """The load of exponential services shorter than x."""
    return rate * (1 - (1 + x) * np.exp(-x))


def _integral(of: Callable[[Floats], Floats]) -> float:
    return float(np.trapezoid(of(_GRID), _GRID))
