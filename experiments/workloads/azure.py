"""The Azure LLM inference traces of 2023.

P. Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024; the files are in
github.com/Azure/AzurePublicDataset, under CC-BY.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from experiments.workloads.files import read_text
from experiments.workloads.trace import Trace, TraceRow
from schedulers.errors import InputError

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, kw_only=True)
class AzureTrace(Trace):
    """A CSV file, plain or gzip, with the columns TIMESTAMP, ContextTokens and GeneratedTokens; others are ignored.

    Timestamps are ISO dates with times; digits beyond the microsecond are dropped. A row that generated no token is an
    error: the published files have none, and a server that fails a request is not what a simulation should repeat.
    """

    def read(self) -> list[TraceRow]:
        """All rows of the file."""
        reader = csv.reader(io.StringIO(read_text(self.path), newline=""))
        try:
            header = [name.strip() for name in next(reader)]
            time, prompt, output = self._columns(header)
            rows: list[TraceRow] = []
            origin: datetime | None = None
            for cells in reader:
                if not cells:
                    continue
                where = f"{self.path}, line {reader.line_num}"
                if len(cells) < len(header):
                    raise InputError(f"{where}: {len(cells)} columns instead of {len(header)}: {_short(cells)}")
                timestamp = _timestamp(where, cells[time])
                origin = origin or timestamp
                rows.append(
                    TraceRow(
                        reader.line_num,
                        _seconds(where, timestamp, origin),
                        _tokens(where, _COLUMNS[1], cells[prompt]),
                        _tokens(where, _COLUMNS[2], cells[output]),
                    )
                )
        except csv.Error as error:
            raise InputError(f"{self.path}, line {reader.line_num}: this is not CSV ({error})") from None
        if not rows:
            raise InputError(f"{self.path}: the file has a header but no rows")
        return rows

    def _columns(self, header: Sequence[str]) -> list[int]:
        missing = [name for name in _COLUMNS if name not in header]
        if missing:
            raise InputError(
                f"{self.path}, line 1: no column {' and '.join(missing)}; the file's columns are {_short(header)}, "
                f"an Azure trace has {', '.join(_COLUMNS)}"
            )
        return [header.index(name) for name in _COLUMNS]


def _timestamp(where: str, cell: str) -> datetime:
    try:
        return datetime.fromisoformat(cell.strip())
    except ValueError:
        raise InputError(
            f"{where}, column TIMESTAMP: {cell[:60]!r} is not a time such as 2023-11-16 18:15:46.6805900"
        ) from None


def _seconds(where: str, timestamp: datetime, origin: datetime) -> float:
    try:
        return (timestamp - origin).total_seconds()
    except TypeError:
        raise InputError(f"{where}, column TIMESTAMP: some rows have a time zone and some have none") from None


def _tokens(where: str, column: str, cell: str) -> int:
    try:
        tokens = int(cell)
    except ValueError:
        tokens = 0
    if tokens < 1:
        raise InputError(f"{where}, column {column}: {cell[:60]!r} is not a whole number of tokens, at least 1")
    return tokens


def _short(cells: Sequence[str]) -> str:
    text = repr(", ".join(cells))
    return text if len(text) <= 120 else text[:120] + "..."
