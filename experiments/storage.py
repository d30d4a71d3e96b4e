"""A run's folder: what is in it, how it is written whole or not at all, and how it is read back.

    config.yaml           the composed configuration
    steps.parquet         one row a step, the fields of `schedulers.records.StepRecord`
    requests.parquet      one row a request, the fields of `RequestRecord`; token_times_s is a list
    token_histogram.csv   how many steps had how many prefill and how many decode tokens
    trace.json.gz         for Perfetto
    decisions.jsonl.gz    with mode.decisions=true: see `experiments.decision_log`
    summary.json          the figures of `experiments.summary.summarize`; written last: where it is, the run is complete

The same run gives the same bytes: no file holds a date.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from experiments.columns import RequestColumns, StepColumns
from experiments.metrics import add_histograms, token_histogram
from experiments.recording import (
    REQUESTS,
    STEPS,
    Recording,
    StoredRequests,
    StoredSteps,
    cannot_write,
    request_columns,
    step_columns,
)
from experiments.trace import trace_of_pieces
from schedulers.errors import InputError
from schedulers.records import RequestRecord, StepRecord

SUMMARY = "summary.json"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was read back from its folder, all of it in memory."""

    folder: Path
    config_yaml: str
    steps: StepColumns
    requests: RequestColumns
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run in its folder, whose records are read as they are walked, a piece at a time."""

    folder: Path
    config_yaml: str
    steps: StoredSteps
    requests: StoredRequests
    summary: dict[str, Any]


def write_run(
    folder: Path,
    config_yaml: str,
    steps: Iterable[StepRecord],
    requests: Iterable[RequestRecord],
    summary: Mapping[str, Any],
    further_files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write the folder of a run whose records are at hand, as `write_recording` does."""
    with Recording(folder) as recording:
        recording.take(steps, requests)
        recording.close()
        write_recording(folder, config_yaml, recording, summary, further_files)


def write_recording(
    folder: Path,
    config_yaml: str,
    recording: Recording,
    summary: Mapping[str, Any],
    further_files: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write a run's folder, replacing a run that is there. Only finite numbers may be in the summary.

    Args:
        folder: where the records of `recording`, which is closed, lie already.

    Raises:
        InputError: the folder cannot be written or the disk is full; no half-written file is left behind.
    """
    files: dict[str, bytes | Path] = {
        "config.yaml": config_yaml.encode(),
        **recording.files,
        "token_histogram.csv": _histogram_csv(recording.steps).encode(),
        "trace.json.gz": trace_of_pieces(recording.steps, recording.requests),
        **further_files,
        SUMMARY: (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode(),
    }
    write_files(folder, files)


def prepare(folder: Path) -> None:
    """Make sure that `folder` can be written, before what is to lie there takes long to make.

    Raises:
        InputError: it cannot; names the folder and the reason.
    """
    with cannot_write(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass


def write_files(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write these files (names may hold folders), all or none: first each beside its place, then all renamed.

    The content of a file is given, or it is a file that lies in `folder` already and is to get this name. The last file
    is the one that makes the others count, so an old one of that name goes before any new one comes.

    Raises:
        InputError: something could not be written; names the folder and the reason.
    """
    staged: dict[Path, Path] = {}
    try:
        with cannot_write(folder):
            for name, content in files.items():
                path = folder / name
                if isinstance(content, Path):
                    staged[path] = content
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
                staged[path] = temporary
                temporary.write_bytes(content)
            if staged:
                next(reversed(staged)).unlink(missing_ok=True)
            for path, temporary in staged.items():
                os.replace(temporary, path)
    except InputError:
        for temporary in staged.values():
            _remove(temporary)
        raise


def is_complete(folder: Path) -> bool:
    """Whether the folder holds a run that was written to its end."""
    return (folder / SUMMARY).is_file()


def is_sound(folder: Path) -> bool:
    """Whether the folder holds a complete run of which every file is there and can be read."""
    try:
        read_summary(folder)
        for pieces in (StoredSteps(folder / STEPS), StoredRequests(folder / REQUESTS)):
            for _ in pieces:
                pass
    except InputError:
        return False
    return all((folder / name).is_file() for name in ("config.yaml", "token_histogram.csv", "trace.json.gz"))


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
    steps = _read(folder / STEPS, _read_steps)
    requests = _read(folder / REQUESTS, _read_requests)
    return StoredRun(folder, config_yaml, steps, requests, summary)


def open_run(folder: Path) -> OpenRun:
    """A complete run, whose records have yet to be read; whoever walks them learns if they are damaged.

    Raises:
        InputError: the run is incomplete, or its summary or config is damaged; names the file.
    """
    summary = read_summary(folder)
    config_yaml = _read(folder / "config.yaml", lambda path: path.read_text())
    return OpenRun(folder, config_yaml, StoredSteps(folder / STEPS), StoredRequests(folder / REQUESTS), summary)


def _read_steps(path: Path) -> StepColumns:
    import pyarrow.parquet as pq

    return step_columns(pq.read_table(path))


def _read_requests(path: Path) -> RequestColumns:
    import pyarrow.parquet as pq

    return request_columns(pq.read_table(path))


def _histogram_csv(steps: Iterable[StepColumns]) -> str:
    none = token_histogram(np.empty(0, dtype=np.int64))
    histograms = {"prefill": none, "decode": none}
    for piece in steps:
        for kind, tokens in (("prefill", piece.num_prefill_tokens), ("decode", piece.num_decode_tokens)):
            histograms[kind] = add_histograms(histograms[kind], token_histogram(tokens))
    lines = ["kind,from_tokens,to_tokens,steps"]  # to_tokens is the first number that is not in the bin
    for kind, (edges, counts) in histograms.items():
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
