"""Requests that wait for others to end: the users of a closed loop, the turns of a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from experiments.workloads.request import WorkloadRequest
from schedulers.errors import InputError


@dataclass(frozen=True, slots=True)
class Plan:
    """When the requests of a workload are sent.

    Attributes:
        requests: all of them; those that arrive on their own by arrival.
        followers: those that follow others, by the id of the one they follow.
    """

    requests: Sequence[WorkloadRequest]
    followers: dict[str, list[WorkloadRequest]]

    @classmethod
    def of(cls, requests: Sequence[WorkloadRequest]) -> Plan:
        """Sort the requests of a workload.

        Raises:
            InputError: a request follows one that does not come before it, so that it might wait for ever.
        """
        followers: dict[str, list[WorkloadRequest]] = {}
        for request in requests:
            if request.follows:
                followers.setdefault(request.follows, []).append(request)
        unseen = set(followers)
        for request in requests if followers else ():
            if request.follows in unseen:
                raise InputError(f"{request.name} follows request {request.follows!r}, which does not come before it")
            unseen.discard(request.request_id)
        return cls(requests, followers)

    @property
    def opening(self) -> Iterator[WorkloadRequest]:
        """Those that arrive on their own, by arrival, one after the other."""
        return (request for request in self.requests if not request.follows)

    def follow_ups(self, request_id: str, end_s: float) -> list[WorkloadRequest]:
        """What follows a request that ended at `end_s`, by arrival: end and think time."""
        following = [
            replace(request, arrival_s=end_s + request.think_s) for request in self.followers.get(request_id, ())
        ]
        return sorted(following, key=lambda request: request.arrival_s)
