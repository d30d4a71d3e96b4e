"""Interpolation between, below and beyond the points of a grid."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.interpolation import Extrapolations, Grid

_AXES = {"a": [0.0, 16.0, 64.0], "b": [1.0, 2.0, 4.0, 8.0], "c": [5.0], "d": [16.0, 1024.0]}


def _multilinear(a: float, b: float, c: float, d: float) -> float:
    return 3 + 2 * a + 5 * b * d + a * b * d + c


def _grid() -> Grid:
    return Grid(_AXES, [_multilinear(*at) for at in product(*_AXES.values())], {})


def test_grid_points_are_exact() -> None:
    grid = _grid()
    assert all(grid.at(*at) == _multilinear(*at) for at in product(*_AXES.values()))


@given(st.floats(0, 200), st.floats(1, 30), st.floats(16, 5000))
def test_a_multilinear_function_is_met_everywhere(a: float, b: float, d: float) -> None:
    assert _grid().at(a, b, 5, d) == pytest.approx(_multilinear(a, b, 5, d))


def test_below_the_first_point_its_value_holds() -> None:
    grid = _grid()
    assert grid.at(16, 0, 5, 3) == grid.at(16, 1, 5, 16)
    assert grid.extrapolations == {}


def test_beyond_the_end_the_line_from_half_the_end_goes_on_whatever_the_last_neighbour_says() -> None:
    curve = Grid({"tokens": [1, 1000, 1984, 2000]}, [1, 100, 50, 200], {})
    assert curve.at(3000) == pytest.approx(300)


def test_extrapolations_are_counted_for_each_axis_with_the_largest_value_and_the_end() -> None:
    noted: Extrapolations = {}
    curve = Grid({"tokens": [1, 2, 4]}, [1, 2, 4], noted)
    for x in (4, 5, 9, 7):
        curve.at(x)
    assert noted == {"tokens": (3, 9, 4)}


def test_times_that_fall_towards_the_end_of_an_axis_do_not_fall_beyond_it() -> None:
    grid = Grid({"tokens": [1, 16, 32]}, [5.0, 9.0, 7.0], {})
    assert grid.at(24) == 8.0
    assert grid.at(1000) == 7.0
