"""Rows of trace files: CSV with a header, or one JSON object a line; errors name the file, the line and the column."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from experiments.workloads.files import read_text
from schedulers.errors import InputError


class Row(NamedTuple):
    """One row: where it stands, for messages, and what it has in the columns that were asked for, in their order."""

    line: int
    where: str
    cells: list[Any]
    is_json: bool

    def refuse(self, column: str, value: object, expected: str) -> InputError:
        """The error that says what is wrong with a cell."""
        place, shown = (column, json.dumps(value)) if self.is_json else (f"column {column}", repr(value))
        return InputError(f"{self.where}, {place}: {_short(shown)} is not {expected}")


def csv_rows(path: str, columns: Sequence[str], kind: str) -> Iterator[Row]:
    """The rows of a CSV file, plain or gzip, read as far as they are asked for. Columns are found by name.

    Args:
        columns: those that the file must have.
        kind: what it should be, such as "an Azure trace".

    Raises:
        InputError: the file cannot be read, is no CSV, has no such columns, or no rows; a row is too short.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""))
    try:
        header = [name.strip() for name in next(reader)]
        missing = [name for name in columns if name not in header]
        if missing:
            raise InputError(
                f"{path}, line 1: no column {' and '.join(missing)}; the file's columns are "
                f"{_short(repr(', '.join(header)))}, {kind} has {', '.join(columns)}"
            )
        places = [header.index(name) for name in columns]
        is_empty = True
        for cells in reader:
            if not cells:
                continue
            where = f"{path}, line {reader.line_num}"
            if len(cells) < len(header):
                raise InputError(
                    f"{where}: {len(cells)} columns instead of {len(header)}: {_short(repr(', '.join(cells)))}"
                )
            is_empty = False
            yield Row(reader.line_num, where, [cells[place].strip() for place in places], is_json=False)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: this is not CSV ({error})") from None
    if is_empty:
        raise InputError(f"{path}: the file has a header but no rows")


def json_rows(path: str, keys: Sequence[str], kind: str) -> Iterator[Row]:
    """The objects of a file of JSON lines, plain or gzip, read as far as they are asked for.

    Args:
        keys: those that every object must have.
        kind: what the file should be, such as "a Mooncake trace".

    Raises:
        InputError: the file cannot be read; a line is no JSON object, or has no such keys.
    """
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: this is not JSON ({error}): {line[:60]!r}") from None
        if not isinstance(item, dict):
            raise InputError(f"{where}: this is not a JSON object: {line[:60]!r}")
        missing = [key for key in keys if key not in item]
        if missing:
            raise InputError(
                f"{where}: no {' and '.join(missing)}; the line has {', '.join(map(str, item)) or 'nothing'}, "
                f"{kind} has {', '.join(keys)}"
            )
        yield Row(number, where, [item[key] for key in keys], is_json=True)


def tokens(row: Row, column: str, value: object, *, least: int = 1) -> int:
    """A number of tokens, from a CSV's cell or from JSON.

    Raises:
        InputError: it is none, or below `least`.
    """
    number = _int(value) if isinstance(value, str) else value
    if type(number) is not int or number < least:
        raise row.refuse(column, value, f"a whole number of tokens, at least {least}")
    return number


def seconds(row: Row, column: str, value: object, unit: str, units_per_second: float) -> float:
    """A time, from a CSV's cell or from JSON, in seconds.

    Raises:
        InputError: it is not a finite number.
    """
    number = _float(value) if isinstance(value, str) and unit == "seconds" else value
    if type(number) not in (int, float) or not math.isfinite(number):  # type: ignore[arg-type]
        raise row.refuse(column, value, f"a number of {unit}")
    return float(number) / units_per_second  # type: ignore[arg-type]


def whole_numbers(row: Row, column: str, value: object) -> tuple[int, ...]:
    """A list of whole numbers, from JSON.

    Raises:
        InputError: it is none.
    """
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise row.refuse(column, value, "a list of whole numbers")
    return tuple(value)


def _int(cell: str) -> int | None:
    try:
        return int(cell)
    except ValueError:
        return None


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:120] + "..."
