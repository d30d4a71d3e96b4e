"""Requests that are made when they are asked for: a million of them are some arrays, not a million objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from numpy.typing import NDArray

from experiments.workloads.request import WorkloadRequest

#: Rows become Python numbers so many at a time.
_ROWS_AT_ONCE = 4096


class Drawn(Sequence[WorkloadRequest]):
    """The requests of a workload that was drawn as columns, by arrival. Whoever walks them makes them anew."""

    def __init__(self, columns: Sequence[NDArray[Any]], make: Callable[..., WorkloadRequest]) -> None:
        """The request at place i is `make(i, *row)`, where row has the i-th value of each column."""
        self._columns = columns
        self._make = make

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, index: int) -> WorkloadRequest: ...

    @overload
    def __getitem__(self, index: slice) -> list[WorkloadRequest]: ...

    def __getitem__(self, index: int | slice) -> WorkloadRequest | list[WorkloadRequest]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self._make(place, *(column[place].item() for column in self._columns))

    def __iter__(self) -> Iterator[WorkloadRequest]:
        for start in range(0, len(self), _ROWS_AT_ONCE):
            rows = zip(*(column[start : start + _ROWS_AT_ONCE].tolist() for column in self._columns), strict=True)
            for place, row in enumerate(rows, start):
                yield self._make(place, *row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(_equal, self, other))

    __hash__ = None  # type: ignore[assignment] - as any list


def _equal(one: WorkloadRequest, other: WorkloadRequest) -> bool:
    return one == other
