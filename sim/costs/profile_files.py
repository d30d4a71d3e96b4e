"""Reads kernel profiles in the CSV layout of LLMServingSim 2.0 and refuses, by name, what is missing or broken.

    DEVICE/MODEL/meta.yaml               where and how it was measured
    DEVICE/MODEL/tpN/dense.csv           layer, tokens, time_us
    DEVICE/MODEL/tpN/per_sequence.csv    layer, sequences, time_us
    DEVICE/MODEL/tpN/attention.csv       prefill_chunk, kv_prefill, n_decode, kv_decode, time_us
    DEVICE/MODEL/tpN/moe.csv             tokens, activated_experts, time_us; only for a mixture of experts
    DEVICE/MODEL/tpN/skew_fit.csv        see `sim.costs.skew`; optional
    DEVICE/MODEL/tpN/after_idle.csv      tokens, idle_ms, time_us; optional, and ours: see `sim.costs.after_idle`

Each CSV may be gzipped (.csv.gz), and may have further columns. Times are microseconds of one call on one device.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from schedulers.errors import InputError

#: Layer -> (points of its axis, ascending; time_us at each).
Curves = dict[str, tuple[list[float], list[float]]]
#: (prefill_chunk, kv_prefill, n_decode, kv_decode) -> time_us.
Points = dict[tuple[float, ...], float]

ATTENTION_AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
AFTER_IDLE_AXES = ("tokens", "idle_ms")


def tensor_parallel_folder(folder: Path, tensor_parallel: int) -> Path:
    """The tpN folder of a profile.

    Raises:
        InputError: the profile or the degree is not there; the message says which degrees are.
    """
    if not folder.is_dir():
        raise InputError(f"no profile: {folder} is not a folder; it must hold meta.yaml and tp1/ or other degrees")
    chosen = folder / f"tp{tensor_parallel}"
    if not chosen.is_dir():
        there = sorted(path.name for path in folder.glob("tp*") if path.is_dir())
        raise InputError(
            f"profile {folder} was not measured with tensor_parallel={tensor_parallel}; "
            f"it has {', '.join(there) if there else 'no tpN folder at all'}"
        )
    return chosen


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.yaml of a profile.

    Raises:
        InputError: it is missing, or not a YAML mapping.
    """
    import yaml

    file = folder / "meta.yaml"
    if not file.is_file():
        raise InputError(f"profile {folder} has no meta.yaml, which says where and how it was measured")
    try:
        meta = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not YAML: {error}") from error
    if not isinstance(meta, dict):
        raise InputError(f"{file} must be a mapping of keys to values, and is {type(meta).__name__}")
    return meta


def read_curves(folder: Path, name: str, axis: str, required: Sequence[str], optional: Sequence[str] = ()) -> Curves:
    """Read dense.csv or per_sequence.csv: for each layer the time over `axis`.

    Raises:
        InputError: the file is missing or broken, a required layer is not in it, or one is that nobody knows to price.
    """
    file = find_table(folder, name)
    points: dict[str, dict[float, float]] = {}
    for line, (layer, x, time_us) in read_table(file, ("layer", axis, "time_us"), text_columns=1):
        curve = points.setdefault(str(layer), {})
        if x in curve:
            raise InputError(f"{file}, line {line}: {layer} at {axis}={x:g} was given before")
        curve[float(x)] = float(time_us)
    if absent := [layer for layer in required if layer not in points]:
        raise InputError(f"{file}: no row for {', '.join(absent)}")
    if unknown := sorted(points.keys() - {*required, *optional}):
        raise InputError(f"{file}: unknown layer {', '.join(unknown)}; known are {', '.join([*required, *optional])}")
    return {layer: (sorted(curve), [curve[x] for x in sorted(curve)]) for layer, curve in points.items()}


def read_attention(folder: Path) -> tuple[Path, Points]:
    """Read attention.csv: the file's path, for messages about it, and time_us at each measured point.

    Raises:
        InputError: the file is missing or broken.
    """
    file = find_table(folder, "attention")
    return file, _points(file, ATTENTION_AXES)


def read_moe(folder: Path) -> dict[float, tuple[list[float], list[float]]]:
    """Read moe.csv: for each number of tokens, the time of a layer's experts over how many of them are used.

    Rows measured for experts spread over several devices (a column `ep` above 1) are left out.

    Raises:
        InputError: the file is missing or broken, or has no row for experts that are all on the device.
    """
    file = find_table(folder, "moe")
    points = _points(file, ("tokens", "activated_experts"), {"ep": 1.0})
    curves: dict[float, tuple[list[float], list[float]]] = {}
    for (tokens, experts), time_us in sorted(points.items()):
        xs, times = curves.setdefault(tokens, ([], []))
        xs.append(experts)
        times.append(time_us)
    return curves


def read_after_idle(folder: Path) -> tuple[Path, Points] | None:
    """Read after_idle.csv: its path, and time_us at each (tokens, idle_ms); None if the profile has none.

    Raises:
        InputError: the file is broken.
    """
    if not has_table(folder, "after_idle"):
        return None
    file = find_table(folder, "after_idle")
    return file, _points(file, AFTER_IDLE_AXES)


def _points(file: Path, axes: Sequence[str], only: Mapping[str, float] = MappingProxyType({})) -> Points:
    """time_us at each point of `axes`, over the rows in which the columns of `only`, if the file has them, are so."""
    points: Points = {}
    for line, row in read_table(file, (*axes, "time_us"), only=only):
        *at, time_us = (float(value) for value in row)
        if tuple(at) in points:
            raise InputError(f"{file}, line {line}: the point {_named(axes, at)} was given before")
        points[tuple(at)] = time_us
    if not points:
        raise InputError(
            f"{file} has no row with {' and '.join(f'{column}={value:g}' for column, value in only.items())}"
        )
    return points


def declared_axis(text: str, file: Path) -> list[float]:
    """The points of an axis that meta.yaml declares like "0, 16-2048 x2": 0, and from 16 on twice as much up to 2048.

    Raises:
        InputError: it is written otherwise.
    """
    points: set[float] = set()
    for part in str(text).split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+) x(\d+(?:\.\d+)?))?\s*", part)
        if not match or (match[3] and (float(match[3]) <= 1 or match[1] == "0")):
            raise InputError(f'{file}: attention_grid has {text!r}; an axis is written like "0, 16-2048 x2"')
        value = float(match[1])
        points.add(value)
        if match[2]:
            while value < float(match[2]):
                points.add(float(round(value)))
                value *= float(match[3])
            points.add(float(match[2]))
    return sorted(points)


def full_grid(
    file: Path,
    columns: Sequence[str],
    axes: Mapping[str, Sequence[float]],
    points: Points,
    fixed: Mapping[str, float] = MappingProxyType({}),
) -> list[float]:
    """The times at all combinations of `axes`, last axis fastest; the other `columns` of a point are `fixed`.

    Raises:
        InputError: points are missing; the message names the first of them, and their number.
    """
    grid = [
        tuple(fixed[name] if name in fixed else at[name] for name in columns)
        for at in (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    ]
    holes = [at for at in grid if at not in points]
    if holes or not grid:
        named = "; ".join(_named(columns, at) for at in islice(holes, 3))
        raise InputError(
            f"{file}: the grid has a hole: {len(holes):,} of {len(grid):,} points are missing: {named}"
            f"{' and so on' if len(holes) > 3 else ''}"
        )
    return [points[at] for at in grid]


def _named(axes: Sequence[str], at: Sequence[float]) -> str:
    return ", ".join(f"{axis}={value:g}" for axis, value in zip(axes, at, strict=True))


def find_table(folder: Path, name: str) -> Path:
    """The CSV file of that name, plain or gzipped.

    Raises:
        InputError: there is neither.
    """
    for file in _places(folder, name):
        if file.is_file():
            return file
    raise InputError(f"profile {folder} has neither {name}.csv nor {name}.csv.gz")


def has_table(folder: Path, name: str) -> bool:
    """Whether there is a CSV file of that name, plain or gzipped."""
    return any(file.is_file() for file in _places(folder, name))


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.csv", folder / f"{name}.csv.gz"


def read_table(
    file: Path,
    columns: Sequence[str],
    text_columns: int = 0,
    *,
    signed: bool = False,
    only: Mapping[str, float] = MappingProxyType({}),
) -> Iterator[tuple[int, list[str | float]]]:
    """Line number and the values of `columns`, row by row.

    All but the first `text_columns` are numbers, of 0 or more unless `signed`. Rows in which a column of `only` has
    another value are left out; a column that the file does not have excludes nothing.

    Raises:
        InputError: a column is missing, a row broken, or there is none.
    """
    try:
        with gzip.open(file, "rt", newline="") if file.suffix == ".gz" else file.open(newline="") as stream:
            reader = csv.reader(stream)
            header = next(reader, [])
            if absent := [column for column in columns if column not in header]:
                raise InputError(
                    f"{file}: column {', '.join(absent)} is missing; the header must have {', '.join(columns)}"
                )
            indices = [header.index(column) for column in columns]
            conditions = [(header.index(column), value) for column, value in only.items() if column in header]
            line = 1
            for line, row in enumerate(reader, start=2):
                if len(row) != len(header):
                    raise InputError(
                        f"{file}, line {line}: {len(row)} values under {len(header)} columns; is it cut off?"
                    )
                if any(_number(row[index], file, line) != value for index, value in conditions):
                    continue
                texts = [row[index] for index in indices]
                numbers = (_number(text, file, line, signed=signed) for text in texts[text_columns:])
                yield line, [*texts[:text_columns], *numbers]
            if line == 1:
                raise InputError(f"{file} has a header and no rows")
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} cannot be read as CSV: {error}") from error


def _number(text: str, file: Path, line: int, *, signed: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (-math.inf if signed else 0) <= value < math.inf or math.isinf(value):
        raise InputError(f"{file}, line {line}: {text!r} is not a number{'' if signed else ' of 0 or more'}")
    return value
