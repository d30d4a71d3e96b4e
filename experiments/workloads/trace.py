"""Recorded workloads: which rows of a trace are sent, and when. How its file is read is up to each kind of trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.workloads import checks
from experiments.workloads.arrivals import Poisson
from experiments.workloads.clients import Clients, RequestClass
from experiments.workloads.request import WorkloadRequest
from experiments.workloads.seeds import Streams, streams
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
    token_ids: tuple[int, ...] = ()
    #: What the row has in the column that tells classes apart.
    class_name: str = ""


@dataclass(frozen=True, kw_only=True)
class Trace(Clients, ABC):
    """A cut of a trace, on its own clock or at a given rate.

    First the window [`start_s`, `start_s` + `duration_s`) of the trace's clock is taken, counted from its first row,
    then the first `num_requests` rows of it. Arrivals are counted from the first row of the cut.

    `rate` stretches or squeezes all gaps alike, so that the cut's mean rate, (n - 1) / (last - first), is `rate`; null
    keeps the trace's clock.

    `reseed` says what the seed does. False: nothing; every seed gives the same requests, so several seeds give no
    confidence interval. True: arrivals are drawn as a Poisson process at `rate` (null: the cut's mean rate), and the
    rows are handed out in an order drawn from the seed, unless `order_matters`; prompt and output of a row stay
    together.

    Classes are told apart by `class_column`, a column (or key) of the file whose values are their names; without one
    they are drawn by their shares, from the seed if `reseed` lets it do anything.
    """

    path: str
    rate: float | None = None
    num_requests: int | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    reseed: bool = False
    class_column: str | None = None

    #: Rows refer to earlier ones (a conversation's turns), so reseeding must not reorder them.
    order_matters: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.text("workload.path", self.path)
        if self.class_column is not None:
            checks.text("workload.class_column", self.class_column)
        if self.rate is not None:
            checks.rate("workload.rate", self.rate)
        if self.num_requests is not None:
            checks.count("workload.num_requests", self.num_requests)
        checks.not_negative("workload.start_s", self.start_s)
        if self.duration_s is not None:
            checks.positive("workload.duration_s", self.duration_s)
        checks.flag("workload.reseed", self.reseed)

    def _check_class(self, key: str, kind: object) -> None:
        super()._check_class(key, kind)
        if isinstance(kind, RequestClass) and (kind.prompt or kind.output):
            raise InputError(f"{key}: the lengths are those of the trace; leave prompt and output out")

    def _check_shares(self) -> None:
        if self.class_column is None:
            super()._check_shares()
        elif not self.classes:
            raise InputError(
                f"workload.class_column={self.class_column}: workload.classes must say what its values stand for"
            )
        elif given := [name for name, kind in self.classes.items() if kind.share]:
            raise InputError(
                f"workload.classes.{given[0]}.share={self.classes[given[0]].share:g}: the shares are those of "
                f"workload.class_column={self.class_column}; leave them out"
            )

    @abstractmethod
    def read(self) -> Iterable[TraceRow]:
        """The rows of the file, in its order, at least one; read as far as they are asked for.

        Raises:
            InputError: naming the file, and the line and column at fault.
        """

    def with_class_column(self, columns: Sequence[str]) -> list[str]:
        """What to read of the file: these columns, and the one that tells classes apart, last."""
        return [*columns, *([] if self.class_column is None else [self.class_column])]

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
            rate = self._mean_rate(rows) if self.rate is None else self.rate
            arrivals_s = Poisson().times_s(len(rows), rate, drawn.arrivals)
            if not self.order_matters:
                rows = [rows[index] for index in drawn.order.permutation(len(rows)).tolist()]
        else:
            arrivals_s = self._recorded_arrivals_s(rows)
            drawn = streams(0)
        kinds = self._kinds_of(rows, drawn)
        return [
            WorkloadRequest(
                request_id=f"r{number:05d}",
                arrival_s=arrival_s,
                num_prompt_tokens=row.num_prompt_tokens,
                num_output_tokens=row.num_output_tokens,
                max_tokens=self.max_tokens,
                priority=kind.priority,
                client_id=kind.client_id,
                slo=kind.slo,
                class_name=name,
                hash_ids=row.hash_ids,
                trace_block_tokens=self.block_tokens,
                token_ids=row.token_ids,
                trace_path=self.path,
                trace_line=row.line,
            )
            for number, (arrival_s, row, (name, kind)) in enumerate(zip(arrivals_s.tolist(), rows, kinds, strict=True))
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
        classes = self.describe_classes() if self.class_column is None else f"; classes by {self.class_column}"
        return ", ".join([Path(self.path).name, *cut, clock]) + classes

    def _cut(self, rows: Iterable[TraceRow]) -> list[TraceRow]:
        end_s = np.inf if self.duration_s is None else self.start_s + self.duration_s
        window: list[TraceRow] = []
        last_s = 0.0
        for row, time_s in self._from_zero(rows):
            last_s = time_s
            if time_s >= end_s or len(window) == self.num_requests:
                break
            if time_s >= self.start_s:
                window.append(row)
        if not window:
            raise InputError(
                f"{self.path}: no request arrives between workload.start_s={self.start_s:g} and {end_s:g} s; "
                + (f"the next comes at {last_s:g} s" if last_s >= end_s else f"the trace ends at {last_s:g} s")
            )
        if self.num_requests is not None and self.num_requests > len(window):
            raise InputError(
                f"workload.num_requests={self.num_requests}: {self.path} has {len(window)} requests in this window; "
                "ask for fewer, or null for all"
            )
        return window

    def _from_zero(self, rows: Iterable[TraceRow]) -> Iterator[tuple[TraceRow, float]]:
        """Each row with its time since the first one."""
        first = before = None
        for row in rows:
            first, before = first or row, before or row
            # Sorting would hide that a file was cut and pasted together or damaged, so it is left to the user.
            if row.time_s < before.time_s:
                raise InputError(
                    f"{self.path}, line {row.line}: the request arrives {before.time_s - row.time_s:g} s before that "
                    f"of line {before.line}; a trace must be sorted by time"
                )
            yield row, row.time_s - first.time_s
            before = row

    def _kinds_of(self, rows: Sequence[TraceRow], drawn: Streams) -> list[tuple[str, RequestClass]]:
        """The class of each row, with its name."""
        kinds = self.kinds
        if self.class_column is None:
            return [kinds[index] for index in self.draw_kinds(len(rows), drawn.classes).tolist()]
        for row in rows:
            if row.class_name not in self.classes:
                raise InputError(
                    f"{self.path}, line {row.line}, {self.class_column}: {row.class_name!r} is none of "
                    f"workload.classes, which are {', '.join(self.classes)}"
                )
        return [(row.class_name, self.classes[row.class_name]) for row in rows]

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
