"""Laws that every simulated run obeys, whatever its policy: Little's, and that no engine idles while it has work.

Each is a comparison of two accounts of the same run that were kept apart: the steps', as the engine went along, and
the requests', from their own times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from experiments.columns import Floats, RequestColumns, StepColumns

#: Sums of many times agree to this share of their size.
ROUNDING = 1e-6


def violations(steps: Iterable[StepColumns], requests: Iterable[RequestColumns], arrival_s: float = 0.0) -> list[str]:
    """What a run violates, a sentence each with its figures; normally nothing.

    Little's law (Little 1961), L = lambda W: the mean number of requests in the system, as the engines integrated it
    over time (`request_s` of the steps), is the rate of arrivals times the mean time in the system (finish minus
    arrival, of the requests).

    Work conservation: from when the engine that serves it knows of it, `arrival_s` after its arrival, to its end, a
    request lies within one busy period of that engine, that is, steps without a gap. Otherwise that engine stood idle
    while the request waited for it.

    A run whose engine keeps no account of `request_s`, as the real one does not, is not checked. Memory is 8 bytes a
    busy period.
    """
    request_s, busy = 0.0, _BusyPeriods()
    for done in steps:
        request_s += float(done.request_s.sum())
        busy.add(done)
    if np.isnan(request_s):
        return []

    number, time_s, first_s, last_s = 0, 0.0, np.inf, -np.inf
    num_stranded, worst = 0, _Stranded(0.0, "", 0, 0.0)
    periods = busy.closed()
    for told in requests:
        number += len(told)
        time_s += float((told.finish_s - told.arrival_s).sum())
        first_s = min(first_s, told.arrival_s.min(initial=np.inf))
        last_s = max(last_s, told.finish_s.max(initial=-np.inf))
        for replica in np.unique(told.replica).tolist():
            mine = np.flatnonzero(told.replica == replica)
            starts = periods.get(replica, np.empty(0))
            index = np.searchsorted(starts, told.finish_s[mine], side="right") - 1
            known_s = told.arrival_s[mine] + arrival_s
            late_s = np.append(starts, np.inf)[index] - known_s  # index -1: it never worked before
            late_s[late_s < 8 * np.spacing(told.finish_s[mine])] = 0.0  # a clock that adds up delays rounds
            num_stranded += int((late_s > 0).sum())
            if late_s.max(initial=0.0) > worst.late_s:
                most = int(late_s.argmax())
                row = int(mine[most])
                worst = _Stranded(float(late_s[most]), told.request_id[row], replica, float(told.arrival_s[row]))

    found = []
    span_s = last_s - first_s
    if number and not np.isclose(request_s, time_s, rtol=ROUNDING, atol=ROUNDING * span_s):
        found.append(
            f"Little's law is violated: the engines counted {request_s / span_s:.6g} requests in the system on average "
            f"(L), but {number / span_s:.6g} arrivals a second (lambda) times {time_s / number:.6g} s in the system "
            f"(W) are {time_s / span_s:.6g}."
        )
    if num_stranded:
        found.append(
            f"Work was not conserved: an engine stood idle while {num_stranded:,} requests waited for it, the longest "
            f"engine {worst.replica} while {worst.request_id!r}, which arrived at {worst.arrival_s:.6f} s, waited up "
            f"to {worst.late_s:.6f} s."
        )
    return found


@dataclass(frozen=True, slots=True)
class _Stranded:
    """A request whose engine began its busy period `late_s` after the arrival."""

    late_s: float
    request_id: str
    replica: int
    arrival_s: float


class _BusyPeriods:
    """When the busy periods of each engine began."""

    def __init__(self) -> None:
        self._starts: dict[int, list[Floats]] = {}
        self._end_s: dict[int, float] = {}

    def add(self, steps: StepColumns) -> None:
        """Take further steps; those of one engine are in order."""
        for replica in np.unique(steps.replica).tolist():
            mine = steps.replica == replica
            starts, ends = steps.start_s[mine], steps.end_s[mine]
            before = np.concatenate(([self._end_s.get(replica, -np.inf)], ends[:-1]))
            self._starts.setdefault(replica, []).append(starts[starts > before])
            self._end_s[replica] = float(ends[-1])

    def closed(self) -> dict[int, Floats]:
        """The starts by engine, in order."""
        return {replica: np.concatenate(starts) for replica, starts in self._starts.items()}
