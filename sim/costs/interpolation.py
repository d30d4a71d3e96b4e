"""Times measured on a grid, and what lies between and beyond its points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

#: Axis -> (how often a value lay beyond it, the largest such value, where the axis ends).
Extrapolations = dict[str, tuple[int, float, float]]


class Grid:
    """Multilinear interpolation over a full grid of any number of dimensions.

    It is exact at grid points. A value below an axis is taken as its first point: kernels work in tiles, and less than
    a tile costs as much. A value beyond an axis continues the line through the points at about half of its end and at
    its end (half, so that the noise of two close neighbours is not drawn out) unless that falls, and is noted in
    `extrapolations`.
    """

    def __init__(
        self, axes: Mapping[str, Sequence[float]], values: Sequence[float], extrapolations: Extrapolations
    ) -> None:
        """Take each axis' points, ascending, at least one, and a value for each combination, last axis fastest."""
        strides = [1]
        for points in reversed(list(axes.values())):
            strides.append(strides[-1] * len(points))
        if strides.pop() != len(values):
            raise ValueError(f"{len(values)} values for axes of {[len(points) for points in axes.values()]} points")
        self.values = list(values)
        self.extrapolations = extrapolations
        self._axes = [
            # Name, points, stride, end, and the point that a line beyond the end starts from.
            (name, list(points), stride, points[-1], max(0, bisect_right(points, points[-1] / 2) - 1))
            for (name, points), stride in zip(axes.items(), reversed(strides), strict=True)
        ]

    def at(self, *position: float) -> float:
        """The value at a position, one coordinate an axis."""
        offset = 0
        between: list[tuple[int, float]] = []
        for (name, points, stride, end, tail), x in zip(self._axes, position, strict=True):
            if x > end:
                times, largest, _ = self.extrapolations.get(name, (0, x, end))
                self.extrapolations[name] = (times + 1, max(largest, x), end)
                low, high = tail, len(points) - 1
            else:
                low = bisect_right(points, x) - 1
                high = low + 1
            if low < 0:
                continue
            offset += low * stride
            start = points[low]
            if x != start and low != high:
                between.append(((high - low) * stride, (x - start) / (points[high] - start)))
        return self._corners(offset, between, len(between))

    def _corners(self, offset: int, between: list[tuple[int, float]], dimensions: int) -> float:
        """Interpolate along the first `dimensions` of `between`, each a distance to the far corner and the share of it.

        Recursion is the fastest way to say this in Python; there are at most as many levels as axes.
        """
        if dimensions == 0:
            return self.values[offset]
        step, fraction = between[dimensions - 1]
        near = self._corners(offset, between, dimensions - 1)
        far = self._corners(offset + step, between, dimensions - 1)
        if fraction > 1 and far < near:  # noise of the measurement: more work does not take less time, let alone none
            return far
        return near + (far - near) * fraction
