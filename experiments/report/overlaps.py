"""Lines that lie on each other: drawn so that each still shows.

Schedulers that do the same thing give the same figures, and what is drawn last would hide the others. So a line that
runs along earlier ones is drawn in dashes that leave them visible, and with hollow markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from experiments.report.style import Look

#: Lines closer than this, in points, cannot be told apart.
NEAR_PT = 1.8
#: A line runs along another when this share of its vertices is near it; a mere crossing has fewer.
SHARE = 0.3
#: Length of a dash, in widths of the line.
DASH = 4.0


def reveal(axes: Axes, lines: Sequence[tuple[Look, Line2D]]) -> None:
    """Restyle those of the lines, in the order in which they were drawn, that would hide earlier ones.

    To be called once the scales and limits are final. A line that is dashed already keeps its dashes.
    """
    paths = [_on_paper(axes, line) for _, line in lines]
    below = [sum(_runs_along(path, earlier) for earlier in paths[:i]) for i, path in enumerate(paths)]
    most = max(below, default=0)
    for (look, line), count in zip(lines, below, strict=True):
        if not count:
            continue
        if not look.dash[1]:
            # Each takes another turn, and one turn is left to the solid line beneath them all.
            line.set_linestyle(((most + 1 - count) * DASH, (DASH, most * DASH)))
            line.set_dash_capstyle("butt")
        line.set_markerfacecolor("none")
        line.set_markersize(line.get_markersize() + 1.5 * count)
        line.set_markeredgewidth(1.4)


def _on_paper(axes: Axes, line: Line2D) -> npt.NDArray[np.float64]:
    """The line's vertices in points; those that a logarithmic scale has no place for are left out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        vertices = axes.transData.transform(np.column_stack(line.get_data()).astype(float))
    points = vertices * 72 / axes.figure.dpi
    return points[np.isfinite(points).all(axis=1)]


def _runs_along(path: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> bool:
    if not len(path) or not len(other):
        return False
    starts, ends = (other[:-1], other[1:]) if len(other) > 1 else (other, other)
    along = ends - starts
    lengths = np.maximum((along**2).sum(axis=1), 1e-12)
    offset = path[:, None, :] - starts
    position = np.clip((offset * along).sum(axis=2) / lengths, 0, 1)  # of the nearest point, from start to end
    distance = np.hypot(*np.moveaxis(offset - position[..., None] * along, 2, 0))
    return bool((distance.min(axis=1) < NEAR_PT).mean() >= SHARE)
