"""A waiting queue for each client, walked in an order of clients that may change while walking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from schedulers.request import Request
from schedulers.waiting import WaitingQueue


class ClientQueues(WaitingQueue):
    """Requests of each client in the policy's order; the walk takes the first of the client that ranks lowest then.

    So a policy that charges a client for each request it starts walks on to whoever is served least. A client's rank is
    asked for when a request is to be given, never kept: charging costs nothing, however many wait.
    """

    def __init__(self, key: Callable[[Request, float], Any], rank: Callable[[str], float]) -> None:
        """Sort each client's requests by `key(request, now)` and clients by `rank(client_id)`."""
        super().__init__(key)
        self._rank = rank
        #: Of clients with waiting requests, longest with one first.
        self.queues: dict[str, WaitingQueue] = {}
        #: The client whose last waiting request left most recently.
        self.last_to_leave: str | None = None
        self._num_requests = 0

    def __len__(self) -> int:
        return self._num_requests

    def __iter__(self) -> Iterator[Request]:
        """Walk; the queues may change meanwhile. A request that was given is not given again."""
        walks: dict[str, Iterator[Request]] = {}
        walked: set[str] = set()
        while True:
            left = [client_id for client_id in self.queues if client_id not in walked]
            if not left:
                return
            client_id = min(left, key=self._rank)
            if client_id not in walks:
                walks[client_id] = iter(self.queues[client_id])
            request = next(walks[client_id], None)
            if request is None:
                walked.add(client_id)
            else:
                yield request

    def __contains__(self, request: Request) -> bool:
        return request.client_id in self.queues and request in self.queues[request.client_id]

    def add(self, request: Request, arrival_number: int, now: float) -> None:
        """Enqueue `request` behind those of its client that go before it."""
        queue = self.queues.get(request.client_id) or WaitingQueue(self._key)
        queue.add(request, arrival_number, now)
        self.queues[request.client_id] = queue
        self._num_requests += 1

    def remove(self, request: Request) -> None:
        """Take `request` out."""
        queue = self.queues[request.client_id]
        queue.remove(request)
        self._num_requests -= 1
        if not queue:
            del self.queues[request.client_id]
            self.last_to_leave = request.client_id

    def resort(self, now: float) -> None:
        """Compute all keys anew."""
        for queue in self.queues.values():
            queue.resort(now)
