"""Chance for policies: numbers that depend on a seed and a name alone, equal in every process and in both worlds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator


def draws(seed: int, name: str) -> Iterator[float]:
    """Without end, numbers evenly spread over 0 <= x < 1, independent of those of another seed or name.

    The start is a hash; from there a linear congruential generator goes on (Knuth's MMIX constants, TAOCP 2, 3.3.4).
    """
    state = int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "big")
    while True:
        yield (state >> 11) / 2**53
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
