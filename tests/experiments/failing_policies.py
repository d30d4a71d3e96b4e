"""Policies with one fault each, found by their import path as a user's own would be."""

from __future__ import annotations

from typing import Any

from schedulers import Batch, ChunkedPrefill, Request, SchedulerOutput


class Raises(ChunkedPrefill):
    """Raises while it composes."""

    def compose(self, batch: Batch, now: float) -> None:
        message = "oops"
        raise KeyError(message)


class Idles(ChunkedPrefill):
    """Schedules nothing."""

    def compose(self, batch: Batch, now: float) -> None:
        pass


class MisordersArrivals(ChunkedPrefill):
    """Sorts by what a request does not have."""

    def order(self, request: Request, now: float) -> float:
        return request.nothing  # type: ignore[attr-defined]


class Loops(ChunkedPrefill):
    """Asks for the impossible for ever."""

    def compose(self, batch: Batch, now: float) -> None:
        while True:
            batch.schedule(next(iter(batch.waiting)), 0)


class Overspends(ChunkedPrefill):
    """Takes more than the budget, past the mechanism that would not let it."""

    def schedule(self, now: float) -> SchedulerOutput:
        output = super().schedule(now)
        output.shape.prefills.append((10**6, 0))
        return output


class Interrupted(ChunkedPrefill):
    """Ctrl-C reaches it while it composes, and its clean-up fails."""

    def compose(self, batch: Batch, now: float) -> None:
        interrupt()


class InterruptedWorkload:
    """Ctrl-C reaches it while it is made, and its clean-up fails."""

    def __init__(self, **parameters: Any) -> None:
        interrupt()


def interrupt() -> None:
    """What a clean-up that fails leaves of Ctrl-C."""
    try:
        raise KeyboardInterrupt
    finally:
        [].pop()
