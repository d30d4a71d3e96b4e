"""Mean, percentiles and maximum of many numbers, which come in pieces and need not all be held."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: The percentiles of every distribution in a summary, linearly interpolated between order statistics.
PERCENTILES = (50, 90, 95, 99)

#: So many values are simply kept: 34 MB.
MOST_KEPT = 1 << 22

#: A value has 64 bits, of which each pass over the values decides so many.
_DIGIT_BITS = 16
_PASSES = 64 // _DIGIT_BITS


class Distribution:
    """The distribution of the values that exist (not NaN) among those given, piece by piece, in any order.

    Up to `MOST_KEPT` values are kept and sorted. For more, the percentiles are found by radix selection, exactly too:
    the bits of a float, read as a whole number, order as the floats do, so that counting the values by their highest
    bits, in one pass over all of them, tells where the wanted ones lie; a second pass looks at the next bits of only
    those; and so on. Memory is that of a few tables of counts, whatever the number of values. Thus:

        while not distribution.is_known:
            for piece in all_pieces: distribution.add(piece)
            distribution.end_pass()
    """

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        """Start without any value."""
        self._most_kept = most_kept
        self._kept: list[Floats] | None = []
        self._num_passes = 0
        self.count = 0
        self._sum = 0.0
        self._max = -np.inf
        #: How often each digit came in this pass, by the digits before it, of all values that may be wanted.
        self._counts: dict[int, npt.NDArray[np.int64]] = {0: _no_counts()}
        #: For each wanted order statistic, the digits that are known and its rank among the values that have them.
        self._wanted: list[tuple[int, int]] = []
        self._values: list[float] = []

    @property
    def is_known(self) -> bool:
        """Whether no further pass is needed."""
        return self._num_passes == _PASSES or (self._num_passes > 0 and self._kept is not None)

    def add(self, values: Floats) -> None:
        """Take further values; in a later pass, the same ones again."""
        values = values[~np.isnan(values)]
        if self._num_passes == 0 and len(values):
            self.count += len(values)
            self._sum += float(values.sum())
            self._max = max(self._max, float(values.max()))
            if self._kept is not None:
                self._kept.append(values)
                if self.count <= self._most_kept:
                    return
                values, self._kept = np.concatenate(self._kept), None
        keys = _ordered_keys(values)
        shift = 64 - _DIGIT_BITS * (self._num_passes + 1)
        digits = (keys >> np.uint64(shift)) & np.uint64((1 << _DIGIT_BITS) - 1)
        for prefix in self._counts:
            mine = digits if not self._num_passes else digits[keys >> np.uint64(shift + _DIGIT_BITS) == prefix]
            self._counts[prefix] += np.bincount(mine.astype(np.int64), minlength=1 << _DIGIT_BITS)

    def end_pass(self) -> None:
        """All values were given."""
        self._num_passes += 1
        if self._kept is not None:
            return
        if self._num_passes == 1:
            ranks = [int((self.count - 1) * percent / 100) for percent in PERCENTILES]
            self._wanted = [(0, min(rank + step, self.count - 1)) for rank in ranks for step in (0, 1)]
        narrowed = []
        for prefix, rank in self._wanted:
            sums = np.cumsum(self._counts[prefix])
            digit = int(np.searchsorted(sums, rank, side="right"))
            before = int(sums[digit - 1]) if digit else 0
            narrowed.append((prefix << _DIGIT_BITS | digit, rank - before))
        self._wanted = narrowed
        self._counts = {prefix: _no_counts() for prefix, _ in narrowed}
        if self._num_passes == _PASSES:
            self._values = _floats_of(np.array([key for key, _ in narrowed], dtype=np.uint64)).tolist()

    def figures(self) -> dict[str, float | int | None]:
        """Count, mean, percentiles and maximum, each None when there is no value."""
        if self._kept is not None:
            return distribution(np.concatenate([np.empty(0), *self._kept]))
        percentiles = {}
        for index, percent in enumerate(PERCENTILES):
            low, high = self._values[2 * index : 2 * index + 2]
            place = (self.count - 1) * percent / 100
            percentiles[f"p{percent}"] = low + (high - low) * (place - int(place))
        return {"count": self.count, "mean": self._sum / self.count, **percentiles, "max": self._max}


def distribution(values: Floats) -> dict[str, float | int | None]:
    """Count, mean, percentiles and maximum of the values that exist, each None when none does."""
    values = values[~np.isnan(values)]
    names = [f"p{percentile}" for percentile in PERCENTILES]
    if not len(values):
        return {"count": 0, "mean": None, **dict.fromkeys(names), "max": None}
    percentiles = np.percentile(values, PERCENTILES).tolist()
    return {
        "count": len(values),
        "mean": float(values.mean()),
        **dict(zip(names, percentiles, strict=True)),
        "max": float(values.max()),
    }


_SIGN = np.uint64(1 << 63)


def _ordered_keys(values: Floats) -> npt.NDArray[np.uint64]:
    """Whole numbers that order as the values do: the bits of positive ones, behind the inverted bits of others."""
    bits = (values + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _floats_of(keys: npt.NDArray[np.uint64]) -> Floats:
    bits: Any = np.where(keys & _SIGN, keys ^ _SIGN, ~keys)
    return bits.view(np.float64)


def _no_counts() -> npt.NDArray[np.int64]:
    return np.zeros(1 << _DIGIT_BITS, dtype=np.int64)
