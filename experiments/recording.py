"""The records of a run on their way to disk, in memory that does not grow with the run.

They are kept until they fill a row group of a Parquet file, written, and forgotten; what a run's summary, trace and
histogram need is read back group by group. The files get their names only when the run is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from experiments.columns import RequestColumns, StepColumns, offsets
from schedulers.errors import InputError
from schedulers.records import RequestRecord, StepRecord

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

STEPS, REQUESTS = "steps.parquet", "requests.parquet"

T = TypeVar("T")

#: Rows of a group. One of requests ends earlier when they have so many tokens together.
STEPS_A_GROUP = 1 << 16
REQUESTS_A_GROUP = 1 << 14
TOKENS_A_GROUP = 1 << 18


@dataclass(frozen=True, slots=True)
class StoredSteps:
    """The steps in a Parquet file, a piece a row group; can be walked again and again."""

    path: Path

    def __iter__(self) -> Iterator[StepColumns]:
        return _pieces(self.path, step_columns)


@dataclass(frozen=True, slots=True)
class StoredRequests:
    """The requests in a Parquet file, a piece a row group; can be walked again and again."""

    path: Path

    def __iter__(self) -> Iterator[RequestColumns]:
        return _pieces(self.path, request_columns)


class Recording:
    """Takes the records of a run, in the order in which they come, into temporary files in `folder`.

    As a context manager it removes what it wrote if the run fails. Once it is closed, `steps` and `requests` can be
    walked.

    Raises:
        InputError: from every method, if the folder cannot be written or the disk is full.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is written before the first group is full."""
        self._folder = folder
        self._was_there = folder.exists()
        self._steps: list[StepRecord] = []
        self._requests: list[RequestRecord] = []
        self._num_tokens = 0
        self._writers: dict[str, pq.ParquetWriter] = {}

    @property
    def steps(self) -> StoredSteps:
        """All steps, by their end."""
        return StoredSteps(self.files[STEPS])

    @property
    def requests(self) -> StoredRequests:
        """All requests, by their end."""
        return StoredRequests(self.files[REQUESTS])

    @property
    def files(self) -> dict[str, Path]:
        """Where the files are, by the names that they are to get."""
        return {name: self._folder / f".{name}.{os.getpid()}.tmp" for name in (STEPS, REQUESTS)}

    def step(self, record: StepRecord) -> None:
        """A step has ended."""
        self._steps.append(record)
        if len(self._steps) == STEPS_A_GROUP:
            self._write_steps()

    def request(self, record: RequestRecord) -> None:
        """A request has ended."""
        self._requests.append(record)
        self._num_tokens += record.num_output_tokens
        if len(self._requests) == REQUESTS_A_GROUP or self._num_tokens >= TOKENS_A_GROUP:
            self._write_requests()

    def take(self, steps: Iterable[StepRecord], requests: Iterable[RequestRecord]) -> None:
        """Take the records of a run that is over already."""
        for step in steps:
            self.step(step)
        for request in requests:
            self.request(request)

    def close(self) -> None:
        """The run is over."""
        if self._steps or STEPS not in self._writers:
            self._write_steps()
        if self._requests or REQUESTS not in self._writers:
            self._write_requests()
        with cannot_write(self._folder):
            for writer in self._writers.values():
                writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        for writer in self._writers.values():
            with contextlib.suppress(OSError):  # the disk may be full
                writer.close()
        for file in self.files.values():
            with contextlib.suppress(OSError):  # it has got its name, or there never was a folder for it
                file.unlink()
        if not self._was_there:
            with contextlib.suppress(OSError):  # the run is in it
                self._folder.rmdir()

    def _write_steps(self) -> None:
        self._write(STEPS, step_table(StepColumns.of(self._steps)))
        self._steps.clear()

    def _write_requests(self) -> None:
        self._write(REQUESTS, request_table(RequestColumns.of(self._requests)))
        self._requests.clear()
        self._num_tokens = 0

    def _write(self, name: str, table: pa.Table) -> None:
        import pyarrow.parquet as pq

        with cannot_write(self._folder):
            if name not in self._writers:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._writers[name] = pq.ParquetWriter(self.files[name], table.schema, compression="zstd")
            self._writers[name].write_table(table)


@contextlib.contextmanager
def cannot_write(folder: Path) -> Iterator[None]:
    """Say which folder it is that cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write results to {folder}: {reason}; choose another folder") from error


def step_table(steps: StepColumns) -> pa.Table:
    """The columns of steps as they are stored."""
    import pyarrow as pa

    return pa.table({name: pa.array(getattr(steps, name), from_pandas=True) for name in StepRecord._fields})


def step_columns(table: pa.Table) -> StepColumns:
    """The other way round."""
    return StepColumns(*(table[name].to_numpy() for name in StepRecord._fields))


def request_table(requests: RequestColumns) -> pa.Table:
    """The columns of requests as they are stored: token times as a list each, what is missing as null."""
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


def request_columns(table: pa.Table) -> RequestColumns:
    """The other way round."""
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


def _pieces(path: Path, columns: Callable[[pa.Table], T]) -> Iterator[T]:
    """The row groups of a file, as columns."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                yield columns(file.read_row_group(group))
    except (OSError, ValueError, KeyError) as error:  # pyarrow's errors are ValueErrors
        raise InputError(f"{path} is missing or damaged: {error}") from error
