"""Recorded workloads: which rows of a trace are sent, and when. How its file is read is up to each kind of trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.workloads import checks
from experiments.workloads.arrivals import Poisson
from experiments.workloads.limits import TOO_LONG
from experiments.workloads.request import WorkloadRequest
from experiments.workloads.seeds import streams
from schedulers.errors import InputError


class TraceRow(NamedTuple):
    """One request as its trace recorded it."""

    #: Line of the file, counted from 1.
    line: int
    #: Seconds on the trace's clock, of which only differences matter.
    time_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trace(ABC):
    """A cut of a trace, on its own clock or at a given rate.

    First the window [`start_s`, `start_s` + `duration_s`) of the trace's clock is taken, counted from its first row,
    then the first `num_requests` rows of it. Arrivals are counted from the first row of the cut.

    `rate` stretches or squeezes all gaps alike, so that the cut's mean rate, (n - 1) / (last - first), is `rate`; null
    keeps the trace's clock.

    `reseed` says what the seed does. False: nothing; every seed gives the same requests, so several seeds give no
    confidence interval. True: arrivals are drawn as a Poisson process at `rate` (null: the cut's mean rate), and the
    rows are handed out in an order drawn from the seed, unless `order_matters`; prompt and output of a row stay
    together.
    """

    path: str
    rate: float | None = None
    num_requests: int | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    reseed: bool = False
    #: What every client gives as its limit; None: no limit.
    max_tokens: int | None = None
    #: What to do with a request longer than the model allows: "error" or "drop".
    too_long: str = "error"

    #: Rows refer to earlier ones (a conversation's turns), so reseeding must not reorder them.
    order_matters: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checks.text("workload.path", self.path)
        if self.rate is not None:
            checks.rate("workload.rate", self.rate)
        if self.num_requests is not None:
            checks.count("workload.num_requests", self.num_requests)
        checks.not_negative("workload.start_s", self.start_s)
        if self.duration_s is not None:
            checks.positive("workload.duration_s", self.duration_s)
        checks.flag("workload.reseed", self.reseed)
        if self.max_tokens is not None:
            checks.count("workload.max_tokens", self.max_tokens)
        checks.one_of("workload.too_long", self.too_long, TOO_LONG)

    @abstractmethod
    def read(self) -> list[TraceRow]:
        """All rows of the file, in its order.

        Raises:
            InputError: naming the file, and the line and column at fault.
        """

    @property
    def block_tokens(self) -> int:
        """Tokens that one hash id of a row covers; 0 for traces without them."""
        return 0

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The requests of the cut, by arrival; what `seed` decides is said by `reseed`.

        Raises:
            InputError: the file is damaged, its rows go back in time, or the cut asks for rows that it does not have.
        """
        drawn = streams(seed)
        rows = self._cut(self.read())
        if self.reseed:
            gaps = Poisson().gaps(len(rows), drawn.arrivals)
            arrivals_s = np.cumsum(gaps) / (self._mean_rate(rows) if self.rate is None else self.rate)
            if not self.order_matters:
                rows = [rows[index] for index in drawn.order.permutation(len(rows)).tolist()]
        else:
            arrivals_s = self._recorded_arrivals_s(rows)
        return [
            WorkloadRequest(
                request_id=f"r{number:05d}",
                arrival_s=arrival_s,
                num_prompt_tokens=row.num_prompt_tokens,
                num_output_tokens=row.num_output_tokens,
                max_tokens=self.max_tokens,
                hash_ids=row.hash_ids,
                trace_block_tokens=self.block_tokens,
                trace_path=self.path,
                trace_line=row.line,
            )
            for number, (arrival_s, row) in enumerate(zip(arrivals_s.tolist(), rows, strict=True))
        ]

    def describe(self) -> str:
        """For example: trace.csv.gz, first 1,000 requests, scaled to 8/s."""
        cut = [] if self.num_requests is None else [f"first {self.num_requests:,} requests"]
        if self.start_s or self.duration_s is not None:
            end = "the end" if self.duration_s is None else f"{self.start_s + self.duration_s:g} s"
            cut.append(f"from {self.start_s:g} s to {end}")
        clock = "its own clock" if self.rate is None else f"scaled to {self.rate:g}/s"
        if self.reseed:
            rate = "its mean rate" if self.rate is None else f"{self.rate:g}/s"
            clock = f"arrivals{'' if self.order_matters else ' and order'} redrawn at {rate}"
        return ", ".join([Path(self.path).name, *cut, clock])

    def _cut(self, rows: Sequence[TraceRow]) -> list[TraceRow]:
        for before, row in pairwise(rows):
            # Sorting would hide that a file was cut and pasted together or damaged, so it is left to the user.
            if row.time_s < before.time_s:
                raise InputError(
                    f"{self.path}, line {row.line}: the request arrives {before.time_s - row.time_s:g} s before that "
                    f"of line {before.line}; a trace must be sorted by time"
                )
        origin_s = rows[0].time_s
        end_s = np.inf if self.duration_s is None else self.start_s + self.duration_s
        window = [row for row in rows if self.start_s <= row.time_s - origin_s < end_s]
        if not window:
            raise InputError(
                f"{self.path}: no request arrives between workload.start_s={self.start_s:g} and {end_s:g} s; "
                f"the trace ends at {rows[-1].time_s - origin_s:g} s"
            )
        if self.num_requests is not None and self.num_requests > len(window):
            raise InputError(
                f"workload.num_requests={self.num_requests}: {self.path} has {len(window)} requests in this window; "
                "ask for fewer, or null for all"
            )
        return window[: self.num_requests]

    def _recorded_arrivals_s(self, rows: Sequence[TraceRow]) -> NDArray[np.float64]:
        arrivals_s = np.array([row.time_s for row in rows]) - rows[0].time_s
        if self.rate is None or len(rows) == 1:
            return arrivals_s
        return arrivals_s * self._mean_rate(rows) / self.rate

    def _mean_rate(self, rows: Sequence[TraceRow]) -> float:
        span_s = rows[-1].time_s - rows[0].time_s
        if not span_s:
            raise InputError(
                f"{self.path}: all {len(rows)} requests of the cut arrive at once, so they have no rate of their own; "
                "take more rows, or give workload.reseed=true with workload.rate"
            )
        return (len(rows) - 1) / span_s
