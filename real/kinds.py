"""What a value is, whoever gave it: what passes these can be computed with, and sent to another process."""

from __future__ import annotations

import math
from typing import Any


def is_whole(value: Any, least: float = -(1 << 63), most: float = (1 << 63) - 1) -> bool:
    """A whole number in that range; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any) -> bool:
    """A finite number, no larger than a float can be."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_text(value: Any) -> bool:
    """A string that UTF-8 can write down: it has no lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
