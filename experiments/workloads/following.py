"""Requests that wait for others to end: the users of a closed loop, the turns of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiments.workloads.request import WorkloadRequest
from schedulers.errors import InputError


@dataclass(frozen=True, slots=True)
class Plan:
    """When the requests of a workload are sent.

    Attributes:
        opening: those that arrive on their own, by arrival.
        followers: those that follow others, by the id of the one they follow.
    """

    opening: list[WorkloadRequest]
    followers: dict[str, list[WorkloadRequest]]

    @classmethod
    def of(cls, requests: Sequence[WorkloadRequest]) -> Plan:
        """Sort the requests of a workload.

        Raises:
            InputError: a request follows one that does not come before it, so that it might wait for ever.
        """
        plan, seen = cls([], {}), set[str]()
        for request in requests:
            if not request.follows:
                plan.opening.append(request)
            elif request.follows in seen:
                plan.followers.setdefault(request.follows, []).append(request)
            else:
                raise InputError(f"{request.name} follows request {request.follows!r}, which does not come before it")
            seen.add(request.request_id)
        plan.opening.sort(key=lambda request: request.arrival_s)
        return plan

    def follow_ups(self, request_id: str, end_s: float) -> list[WorkloadRequest]:
        """What follows a request that ended at `end_s`, by arrival: end and think time."""
        following = [
            replace(request, arrival_s=end_s + request.think_s) for request in self.followers.get(request_id, ())
        ]
        return sorted(following, key=lambda request: request.arrival_s)
