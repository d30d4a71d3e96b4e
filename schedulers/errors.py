"""What can go wrong, in words a person can act on.

Every error that a user can cause derives from `TwinserveError`; the door prints its message without a traceback.
"""

from __future__ import annotations

import traceback
from types import TracebackType


class TwinserveError(Exception):
    """Base of all errors that end in one clear message."""


class InputError(TwinserveError):
    """Something the user gave is wrong; the message names it and says what would be right."""


class RequestRefused(InputError):
    """A request that can never be served, refused when it arrives."""


class SchedulerError(TwinserveError):
    """A policy raised, broke an invariant, or made no progress; the message names the step."""


class blaming:  # noqa: N801 (reads as a verb where it is used)
    """Turn whatever a policy raises into one `SchedulerError` that names the step, the policy and the line.

    A router or a length predictor, which knows no steps, is blamed with the request in place of the step.
    """

    __slots__ = ("_scheduler", "_step")

    def __init__(self, scheduler: object, step: int | str) -> None:
        self._scheduler = scheduler
        self._step = step

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, TwinserveError):
            where = traceback.extract_tb(trace)[-1]
            when = f"step {self._step}" if isinstance(self._step, int) else f"request {self._step!r}"
            raise SchedulerError(
                f"{when}: {type(self._scheduler).__name__} raised {type(error).__name__}: {error} "
                f"({where.filename}, line {where.lineno})"
            ) from error
