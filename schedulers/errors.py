"""What can go wrong, in words a person can act on.

Every error that a user can cause derives from `TwinserveError`; the door prints its message without a traceback.
"""


class TwinserveError(Exception):
    """Base of all errors that end in one clear message."""


class InputError(TwinserveError):
    """Something the user gave is wrong; the message names it and says what would be right."""


class RequestRefused(InputError):
    """A request that can never be served, refused when it arrives."""


class SchedulerError(TwinserveError):
    """A policy raised, broke an invariant, or made no progress; the message names the step."""
