"""When requests come: rates, and how far they are from coming evenly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.workloads import WorkloadRequest

Floats = NDArray[np.float64]


def due_s(requests: Sequence[WorkloadRequest]) -> Floats:
    """When each would arrive if every answer took no time: the earliest that any engine can make it; shape (requests,).

    For a request that waits for nobody this is when it does arrive.
    """
    due: dict[str, float] = {}
    for request in requests:
        due[request.request_id] = due[request.follows] + request.think_s if request.follows else request.arrival_s
    return np.array(list(due.values()))


@dataclass(frozen=True, slots=True)
class Window:
    """Arrivals counted in windows of `seconds`, of which there are at least two.

    Attributes:
        dispersion: index of dispersion for counts, variance by mean; 1 for Poisson arrivals at any window, more for
            bursts that last about as long as the window or longer.
        peak_rate: of the fullest window, requests a second.
    """

    seconds: float
    dispersion: float
    peak_rate: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Arrivals over time.

    Attributes:
        times_s: sorted.
        gap_cv: coefficient of variation of the gaps, standard deviation by mean; 1 for Poisson arrivals. None where
            there are no gaps, or all are 0.
        windows: of the lengths that were asked for, those that pass at least twice.
    """

    times_s: Floats
    gap_cv: float | None
    windows: list[Window]

    @classmethod
    def of(cls, times_s: Floats, windows_s: Sequence[float]) -> Traffic:
        """Count arrivals at these times in windows of these lengths, in seconds; at least one arrival."""
        times_s = np.sort(times_s)
        gaps = np.diff(times_s)
        gap_cv = float(gaps.std() / gaps.mean()) if gaps.any() else None
        lengths_s = [seconds for seconds in windows_s if 2 * seconds <= times_s[-1] - times_s[0]]
        return cls(times_s, gap_cv, [_window(times_s, seconds) for seconds in lengths_s])

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return float(self.times_s[-1] - self.times_s[0])

    @property
    def rate(self) -> float | None:
        """Arrivals a second, (n - 1) / span; None if all come at once."""
        return (len(self.times_s) - 1) / self.span_s if self.span_s else None


def counts(times_s: Floats, seconds: float) -> NDArray[np.int64]:
    """Arrivals in each window of `seconds`, from that of the first arrival to that of the last."""
    index = ((times_s - times_s[0]) // seconds).astype(np.int64)
    return np.bincount(index)


def _window(times_s: Floats, seconds: float) -> Window:
    whole = counts(times_s, seconds)[:-1]  # the last window was not open for its whole time
    return Window(seconds, float(whole.var() / whole.mean()), float(whole.max()) / seconds)
