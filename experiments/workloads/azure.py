"""The Azure LLM inference traces of 2023.

P. Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024; the files are in
github.com/Azure/AzurePublicDataset, under CC-BY.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from experiments.workloads.rows import Row, csv_rows, tokens
from experiments.workloads.trace import Trace, TraceRow
from schedulers.errors import InputError

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, kw_only=True)
class AzureTrace(Trace):
    """A CSV file, plain or gzip, with the columns TIMESTAMP, ContextTokens and GeneratedTokens; others are ignored.

    Timestamps are ISO dates with times; digits beyond the microsecond are dropped. A row that generated no token is an
    error: the published files have none, and a server that fails a request is not what a simulation should repeat.
    """

    def read(self) -> Iterator[TraceRow]:
        """The rows of the file."""
        origin: datetime | None = None
        for row in csv_rows(self.path, self.with_class_column(_COLUMNS), "an Azure trace"):
            time, prompt, output, *name = row.cells
            timestamp = _timestamp(row, time)
            origin = origin or timestamp
            yield TraceRow(
                row.line,
                _seconds(row, timestamp, origin),
                tokens(row, _COLUMNS[1], prompt),
                tokens(row, _COLUMNS[2], output),
                class_name="".join(name),
            )


def _timestamp(row: Row, cell: str) -> datetime:
    try:
        return datetime.fromisoformat(cell)
    except ValueError:
        raise row.refuse("TIMESTAMP", cell, "a time such as 2023-11-16 18:15:46.6805900") from None


def _seconds(row: Row, timestamp: datetime, origin: datetime) -> float:
    try:
        return (timestamp - origin).total_seconds()
    except TypeError:
        raise InputError(f"{row.where}, column TIMESTAMP: some rows have a time zone and some have none") from None
