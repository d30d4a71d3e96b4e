"""How things look: one colour and marker a scheduler, and a theme that follows the page into the dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Each colour on paper and on a dark page. The series colours are Okabe and Ito's colour-blind-safe set (2008),
#: without yellow and black, which vanish on white and on black; beyond the sixth come a violet and a brown.
SERIES_COLORS = (
    ("#0072b2", "#4aa8e8"),
    ("#d55e00", "#f58a3c"),
    ("#009e73", "#2cc79b"),
    ("#cc79a7", "#e5a0c6"),
    ("#e69f00", "#f2b93b"),
    ("#56b4e9", "#9ad4f5"),
    ("#6a51a3", "#ab97dc"),
    ("#8c564b", "#c49a8f"),
)
INK = ("#1f2328", "#e6e8eb")
MUTED = ("#59636e", "#a3acb6")
GRID = ("#dfe2e6", "#363c44")
#: Behind figures; never drawn in the SVGs of a page, so that its own background shows.
PAPER = ("#ffffff", "#16191d")

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: As matplotlib takes them: an offset, then lengths drawn and left out in turn; the first is a solid line.
DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, ()),
    (0, (5, 2)),
    (0, (1, 1.5)),
    (0, (6, 2, 1, 2)),
    (0, (9, 3)),
)

#: The names of CSS variables that take the place of the paper's colours in a page's SVGs.
CSS_COLORS = {
    INK[0]: "--ink",
    MUTED[0]: "--muted",
    GRID[0]: "--grid",
    **{paper: f"--series-{i}" for i, (paper, _) in enumerate(SERIES_COLORS)},
}

#: matplotlib's settings for every figure. Text is drawn as shapes in SVGs, so that a page needs no font; hashes are
#: salted, so that the same figure has the same bytes.
RC: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.labelcolor": INK[0],
    "axes.titlecolor": INK[0],
    "axes.edgecolor": MUTED[0],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID[0],
    "grid.linewidth": 0.7,
    "xtick.color": MUTED[0],
    "ytick.color": MUTED[0],
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "text.color": INK[0],
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "twinserve",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one series is drawn, everywhere in a report: indices into the colours and markers, and the dashes, above."""

    color_index: int = 0
    dash_index: int = 0

    @property
    def color(self) -> str:
        """On paper."""
        return SERIES_COLORS[self.color_index % len(SERIES_COLORS)][0]

    @property
    def css_variable(self) -> str:
        """In a page."""
        return CSS_COLORS[self.color]

    @property
    def marker(self) -> str:
        """Follows the colour; 7 markers and 8 colours make 56 pairs before one comes again."""
        return MARKERS[self.color_index % len(MARKERS)]

    @property
    def dash(self) -> tuple[float, tuple[float, ...]]:
        """Tells series of one scheduler apart."""
        return DASHES[self.dash_index % len(DASHES)]


def css_variables(dark: bool) -> str:
    """The declarations of all colours, for one of the two themes."""
    colors = {"--ink": INK, "--muted": MUTED, "--grid": GRID, "--paper": PAPER}
    colors |= {f"--series-{i}": pair for i, pair in enumerate(SERIES_COLORS)}
    return " ".join(f"{name}: {pair[dark]};" for name, pair in colors.items())
