"""What every setting of a workload must satisfy; the messages name the setting as a command line would."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

from schedulers.errors import InputError


def positive(key: str, value: object) -> None:
    """Refuse `value` unless it is a finite number above zero.

    Raises:
        InputError: naming `key`, such as "workload.rate".
    """
    if not _is_number(value) or value <= 0:
        raise InputError(f"{key}={value}: it must be a finite number above 0")


def rate(key: str, value: object) -> None:
    """Refuse `value` unless it is a rate that a clock in seconds can tell apart: at least one request in eleven days.

    Raises:
        InputError: naming `key`.
    """
    positive(key, value)
    if _is_number(value) and value < 1e-6:
        raise InputError(f"{key}={value}: it must be at least 1e-06 requests a second")


def not_negative(key: str, value: object) -> None:
    """Refuse `value` unless it is a finite number, zero or above.

    Raises:
        InputError: naming `key`.
    """
    if not _is_number(value) or value < 0:
        raise InputError(f"{key}={value}: it must be a finite number, 0 or above")


def count(key: str, value: object) -> None:
    """Refuse `value` unless it is a whole number of at least 1.

    Raises:
        InputError: naming `key`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{key}={value}: it must be a whole number, at least 1")


def seed(key: str, value: object) -> None:
    """Refuse `value` unless it is a whole number, zero or above.

    Raises:
        InputError: naming `key`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{key}={value}: it must be a whole number, 0 or above")


def one_of(key: str, value: object, choices: Sequence[str]) -> None:
    """Refuse `value` unless it is one of `choices`.

    Raises:
        InputError: naming `key` and the choices.
    """
    if value not in choices:
        raise InputError(f"{key}={value}: it must be {' or '.join(choices)}")


def some(key: str, value: object, example: str) -> None:
    """Refuse `value` unless it is a list with something in it.

    Raises:
        InputError: naming `key` and an example of a right one.
    """
    if not isinstance(value, list) or not value:
        raise InputError(f"{key}={value}: it must be a list such as {example}")


def text(key: str, value: object) -> None:
    """Refuse `value` unless it is a text with something in it.

    Raises:
        InputError: naming `key`.
    """
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{key}={value}: it must be a text, and not empty")


def flag(key: str, value: object) -> None:
    """Refuse `value` unless it is true or false.

    Raises:
        InputError: naming `key`.
    """
    if not isinstance(value, bool):
        raise InputError(f"{key}={value}: it must be true or false")


def made(key: str, value: object, method: str, example: str) -> None:
    """Refuse `value` unless it was made from a node with a `_target_`, and so has `method`.

    Raises:
        InputError: naming `key` and an example of a right one.
    """
    if not callable(getattr(value, method, None)):
        raise InputError(f"{key}={value}: it must be a node such as {example}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
