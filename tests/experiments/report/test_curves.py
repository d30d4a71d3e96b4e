"""Lines and bands: that each shows, and where it ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.report.curves import Curve
from experiments.report.study import Point, Study

LEVEL = [1.0, 2.0, 3.0, 4.0]


def drawn(values: dict[str, list[float]], *, log: bool = False, spread: float = 0.0) -> Axes:
    """The axes with a line a scheduler, its values at rates 1, 2, ...; of three seeds that differ by `spread`."""
    points = [
        Point(Path("nowhere"), {"scheduler": name, "rate": rate, "seed": seed}, {"figure": value + spread * (seed - 1)})
        for name, line in values.items()
        for rate, value in enumerate(line, 1)
        for seed in range(3)
    ]
    axes = Figure().add_subplot()
    Curve(Study(points), ("figure",), "figure", log=log).draw(axes)
    return axes


def dashes(line: Line2D) -> object:
    return line._unscaled_dash_pattern  # type: ignore[attr-defined]  # what matplotlib was told; there is no getter


def test_lines_that_lie_on_each_other_are_dashed_in_turn() -> None:
    lines = drawn({"a": LEVEL, "b": LEVEL, "c": [9.0, 9.0, 9.0, 9.0], "d": LEVEL}).lines
    solid, second, apart, third = lines
    assert dashes(solid) == dashes(apart) == (0, ())
    assert dashes(second) == (8, (4, 8))  # of a turn of 12, each draws 4, and the solid one is left with 4
    assert dashes(third) == (4, (4, 8))
    assert [line.get_markerfacecolor() == "none" for line in lines] == [False, True, False, True]
    assert solid.get_markersize() < second.get_markersize() < third.get_markersize()


def test_lines_that_only_cross_stay_as_they_are() -> None:
    lines = drawn({"a": LEVEL, "b": LEVEL[::-1], "c": [0.5, 2.0, 5.0, 9.0]}).lines
    assert all(dashes(line) == (0, ()) for line in lines)


@pytest.mark.parametrize("log", [False, True])
def test_a_line_with_holes_or_nothing_to_show_is_drawn_all_the_same(log: bool) -> None:
    assert len(drawn({"a": LEVEL, "b": [0.0, 0.0], "c": [2.0]}, log=log).lines) == 3


def test_on_a_logarithmic_scale_a_band_ends_at_the_lowest_seed() -> None:
    # Half of the interval is 2.48 times the spread, so that it would reach below zero.
    for log, lowest in ((True, 0.5), (False, 1 - 4.303 * 0.5 / 3**0.5)):
        (band,) = drawn({"a": [1.0, 100.0]}, log=log, spread=0.5).collections
        assert np.asarray(band.get_paths()[0].vertices)[:, 1].min() == pytest.approx(lowest)
