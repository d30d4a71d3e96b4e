"""What can go wrong, in words a person can act on.

Every error that a user can cause derives from `TwinserveError`; the door prints its message without a traceback.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class TwinserveError(Exception):
    """Base of all errors that end in one clear message."""


class InputError(TwinserveError):
    """Something the user gave is wrong; the message names it and says what would be right."""


class RequestRefused(InputError):
    """A request that can never be served, refused when it arrives."""


class SchedulerError(TwinserveError):
    """A policy raised, broke an invariant, or made no progress; the message names the step."""


@contextmanager
def blaming(scheduler: object, step: int) -> Iterator[None]:
    """Turn whatever a policy raises into one `SchedulerError` that names the step, the policy and the line."""
    try:
        yield
    except TwinserveError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise SchedulerError(
            f"step {step}: {type(scheduler).__name__} raised {type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno})"
        ) from error
