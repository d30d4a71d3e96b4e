"""A run's folder: what is in it, how it is written whole or not at all, and how it is read back.

    config.yaml           the composed configuration
    steps.parquet         one row a step, the fields of `schedulers.records.StepRecord`
    requests.parquet      one row a request, the fields of `RequestRecord`; token_times_s is a list
    token_histogram.csv   how many steps had how many prefill and how many decode tokens
    trace.json.gz         for Perfetto
    decisions.jsonl.gz    with mode.decisions=true: see `experiments.decision_log`
    summary.json          the figures of `experiments.metrics.summarize`; written last: where it is, the run is complete

The same run gives the same bytes: no file holds a date.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from experiments.columns import RequestColumns, StepColumns, offsets
from experiments.metrics import token_histogram
from experiments.trace import perfetto_trace
from schedulers.errors import InputError
from schedulers.records import RequestRecord, StepRecord

if TYPE_CHECKING:
    import pyarrow as pa

SUMMARY = "summary.json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was read back from its folder."""

    folder: Path
    config_yaml: str
    steps: StepColumns
    requests: RequestColumns
    summary: dict[str, Any]


def write_run(
    folder: Path,
    config_yaml: str,
    steps: StepColumns | Sequence[StepRecord],
    requests: RequestColumns | Sequence[RequestRecord],
    summary: Mapping[str, Any],
    further_files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write a run's folder, replacing a run that is there. Only finite numbers may be in the summary.

    Raises:
        InputError: the folder cannot be written or the disk is full; no half-written file is left behind.
    """
    steps, requests = StepColumns.of(steps), RequestColumns.of(requests)
    files = {
        "config.yaml": config_yaml.encode(),
        "steps.parquet": _parquet(_step_table(steps)),
        "requests.parquet": _parquet(_request_table(requests)),
        "token_histogram.csv": _histogram_csv(steps).encode(),
        "trace.json.gz": perfetto_trace(steps, requests),
        **further_files,
        SUMMARY: (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode(),
    }
    write_files(folder, files)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write these files (names may hold folders), all or none: first each beside its place, then all renamed.

    The last file is the one that makes the others count, so an old one of that name goes before any new one comes.

    Raises:
        InputError: something could not be written; names the folder and the reason.
    """
    staged: dict[Path, Path] = {}
    try:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            staged[path] = temporary
            temporary.write_bytes(content)
        if staged:
            next(reversed(staged)).unlink(missing_ok=True)
        for path, temporary in staged.items():
            os.replace(temporary, path)
    except OSError as error:
        for temporary in staged.values():
            _remove(temporary)
        reason = error.strerror or error
        raise InputError(f"cannot write results to {folder}: {reason}; choose another folder") from error


def is_complete(folder: Path) -> bool:
    """Whether the folder holds a run that was written to its end."""
    return (folder / SUMMARY).is_file()


def is_sound(folder: Path) -> bool:
    """Whether the folder holds a complete run of which every file is there and can be read."""
    try:
        read_run(folder)
    except InputError:
        return False
    return all((folder / name).is_file() for name in ("token_histogram.csv", "trace.json.gz"))


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a complete run.

    Raises:
        InputError: there is none, or it is damaged.
    """
    if not is_complete(folder):
        raise InputError(f"{folder} holds no complete run: it has no {SUMMARY}")
    summary = _read(folder / SUMMARY, lambda path: json.loads(path.read_text()))
    if not isinstance(summary, dict) or "ttft_s" not in summary:
        raise InputError(f"{folder / SUMMARY} is not the summary of a run")
    return summary


def read_run(folder: Path) -> StoredRun:
    """A complete run, read back.

    Raises:
        InputError: the run is incomplete or one of its files is damaged; names the file.
    """
    summary = read_summary(folder)
    config_yaml = _read(folder / "config.yaml", lambda path: path.read_text())
    steps = _read(folder / "steps.parquet", _read_steps)
    requests = _read(folder / "requests.parquet", _read_requests)
    return StoredRun(folder, config_yaml, steps, requests, summary)


def _step_table(steps: StepColumns) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: getattr(steps, name) for name in StepRecord._fields})


def _request_table(requests: RequestColumns) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, pa.Array] = {}
    for name in RequestRecord._fields:
        values = getattr(requests, name)
        if name == "token_times_s":
            columns[name] = pa.ListArray.from_arrays(requests.token_offsets.astype(np.int32), values)
        elif isinstance(values, list):
            columns[name] = pa.array(values, pa.string())
        else:
            columns[name] = pa.array(values, from_pandas=True)  # NaN becomes null
    return pa.table(columns)


def _parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_steps(path: Path) -> StepColumns:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return StepColumns(*(table[name].to_numpy() for name in StepRecord._fields))


def _read_requests(path: Path) -> RequestColumns:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    columns: dict[str, Any] = {}
    for name in RequestRecord._fields:
        column = table[name].combine_chunks()
        if name == "token_times_s":
            columns[name] = column.flatten().to_numpy()
            columns["token_offsets"] = offsets(column.value_lengths().to_numpy())
        elif column.type == "string":
            columns[name] = column.to_pylist()
        else:
            values = column.to_numpy(zero_copy_only=False)
            columns[name] = values.astype(np.float64) if values.dtype == object else values
    return RequestColumns(**columns)


def _histogram_csv(steps: StepColumns) -> str:
    lines = ["kind,from_tokens,to_tokens,steps"]  # to_tokens is the first number that is not in the bin
    for kind, tokens in (("prefill", steps.num_prefill_tokens), ("decode", steps.num_decode_tokens)):
        edges, counts = token_histogram(tokens)
        lines += [f"{kind},{edges[i]},{edges[i + 1]},{count}" for i, count in enumerate(counts)]
    return "\n".join(lines) + "\n"


def _read(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except (OSError, ValueError, KeyError) as error:  # pyarrow's and json's errors are ValueErrors
        raise InputError(f"{path} is missing or damaged: {error}") from error


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # its folder is not a folder, or not ours: then there is nothing to remove
        path.unlink(missing_ok=True)
