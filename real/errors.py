"""What can go wrong with a running engine, besides bad input."""

from __future__ import annotations

from schedulers.errors import TwinserveError


class EngineDeadError(TwinserveError):
    """The engine core has died or was shut down, and everything that waits for it ends; the message says of what."""


class WorkerDiedError(TwinserveError):
    """A worker process failed; the message says which and how. The engine core does not survive it."""
