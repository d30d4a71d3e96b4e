"""The waiting queue: requests in the order their policy wants them served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sortedcontainers import SortedList

from schedulers.request import Request

#: (policy's key, arrival number, request); the number is unique, so requests are never compared.
_Entry = tuple[Any, int, Request]


class WaitingQueue:
    """Requests sorted by a policy's key; equal keys keep the order in which requests arrived.

    A key is computed when its request enters and kept until `resort`.
    """

    def __init__(self, key: Callable[[Request, float], Any]) -> None:
        """Sort by `key(request, now)`."""
        self._key = key
        self._entries: SortedList[_Entry] = SortedList()
        self._entry_of: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """Walk the queue in order. It may change meanwhile: the walk goes on behind the request it gave last."""
        entries = self._entries
        index = 0
        while index < len(entries):
            entry = entries[index]
            yield entry[2]
            if index < len(entries) and entries[index] is entry:
                index += 1
            else:
                index = entries.bisect_right(entry)

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._entry_of

    def add(self, request: Request, arrival_number: int, now: float) -> None:
        """Enqueue `request`; `arrival_number` breaks ties."""
        entry = (self._key(request, now), arrival_number, request)
        self._entries.add(entry)
        self._entry_of[request.request_id] = entry

    def remove(self, request: Request) -> None:
        """Take `request` out."""
        entry = self._entry_of.pop(request.request_id)
        if self._entries[0] is entry:
            del self._entries[0]
        else:
            self._entries.remove(entry)

    def resort(self, now: float) -> None:
        """Compute all keys anew, for policies whose keys change with time."""
        entries = [(self._key(request, now), number, request) for _, number, request in self._entries]
        self._entries = SortedList(entries)
        self._entry_of = {entry[2].request_id: entry for entry in entries}
