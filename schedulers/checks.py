"""What parameters of policies must satisfy; a config may say anything, so nothing is taken for granted."""

from __future__ import annotations

import math
from typing import Any

from schedulers.errors import InputError


def count(name: str, value: Any) -> None:
    """Refuse `value` unless it is a whole number of at least 1.

    Raises:
        InputError: naming the parameter.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name}={value!r}: it must be a whole number of at least 1")


def positive(name: str, value: Any) -> None:
    """Refuse `value` unless it is a finite number above 0.

    Raises:
        InputError: naming the parameter.
    """
    if not _is_number(value) or value <= 0:
        raise InputError(f"{name}={value!r}: it must be a number above 0")


def not_negative(name: str, value: Any) -> None:
    """Refuse `value` unless it is a finite number of at least 0.

    Raises:
        InputError: naming the parameter.
    """
    if not _is_number(value) or value < 0:
        raise InputError(f"{name}={value!r}: it must be a number of at least 0")


def share(name: str, value: Any) -> None:
    """Refuse `value` unless it is a number from 0 to 1.

    Raises:
        InputError: naming the parameter.
    """
    if not _is_number(value) or not 0 <= value <= 1:
        raise InputError(f"{name}={value!r}: it must be a number from 0 to 1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
