"""The contract of a cost model."""

from __future__ import annotations

import sys
from typing import Protocol

from schedulers.errors import InputError
from schedulers.step import BatchShape


def arrival_s(cost: CostModel) -> float:
    """Seconds from a request's arrival until the engine knows of it: a cost model may say so in this attribute.

    Raises:
        InputError: what it says is no time.
    """
    said = getattr(cost, "arrival_s", 0.0)
    if not is_time(said):
        raise InputError(
            f"{type(cost).__name__}.arrival_s is {said!r}; it must be a finite number of seconds, 0 or more"
        )
    return float(said)


def is_time(value: object) -> bool:
    """Whether a value that somebody else gives is a finite number of 0 or more, and fits a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


class CostModel(Protocol):
    """Prices a step from the shape of its batch, and from how long the device had nothing to do before it.

    Every cost model is built with the keywords `model: ModelShape`, `device: Device` and `tensor_parallel: int = 1`
    besides its own; the price is that of the whole step, the engine's own time included where it is known. What comes
    before, from a request's arrival until the engine knows of it, is the attribute `arrival_s`, in seconds, if there is
    one.
    """

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds that the step takes.

        Args:
            batch: what it computes, at least one token; not changed.
            idle_s: seconds since the engine's last step ended; infinite before its first. A processor that had nothing
                to do takes time to come to speed; most cost models do not know of it.
        """
        ...

    def warnings(self) -> list[str]:
        """What a reader of the results should know of the prices given so far, one sentence each; often nothing."""
        ...

    def describe(self) -> str:
        """What prices the steps, and from which source, in one line for reports."""
        ...
