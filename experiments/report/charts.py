"""A chart is a title, a caption and some panels; it becomes SVGs in a page, and a PNG and a PDF in `figures/`.

In a page every panel is an SVG of its own, so that they flow into as many columns as the screen has room for, and
takes its colours from the page, so that it is readable in light and dark. In files, the panels stand in a grid under
one legend.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from experiments.report.style import CSS_COLORS, RC, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_WIDTH_IN, PANEL_HEIGHT_IN = 4.4, 3.0


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: `draw` puts everything on them but the title."""

    title: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is shown together. `legend` has the series in it by label; without one the panels speak for themselves."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    legend: Mapping[str, Look]
    columns: int = 3
    #: Behind a fold of the page, for those who want more.
    folded: bool = False
    #: Of each panel, width and height in inches.
    panel_size_in: tuple[float, float] = (PANEL_WIDTH_IN, PANEL_HEIGHT_IN)


def panel_svg(panel: Panel, prefix: str, size_in: tuple[float, float] = (PANEL_WIDTH_IN, PANEL_HEIGHT_IN)) -> str:
    """The panel as an `<svg>` element to stand in HTML; `prefix` keeps its ids apart from those of others."""
    with _settings():
        figure = _figure(*size_in)
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        panel.draw(axes)
        svg = _save(figure, "svg", {"Date": None, "Creator": None}).decode()
    return _for_page(svg, panel.title, prefix)


def chart_files(chart: Chart) -> dict[str, bytes]:
    """The chart as `figures/NAME.png` and `figures/NAME.pdf`, the same bytes for the same chart."""
    columns = min(chart.columns, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    with _settings():
        width, height = chart.panel_size_in
        figure = _figure(columns * width, rows * (height + 0.2) + 0.35)
        for i, panel in enumerate(chart.panels):
            axes = figure.add_subplot(rows, columns, i + 1)
            axes.set_title(panel.title)
            panel.draw(axes)
        if chart.legend:
            _add_legend(figure, chart.legend, columns * width)
        png = _save(figure, "png", {"Software": None})
        figure.set_layout_engine("none")  # it stands; to compute it again for the PDF would take as long as drawing
        pdf = _save(figure, "pdf", {"CreationDate": None})
    return {f"figures/{chart.name}.png": png, f"figures/{chart.name}.pdf": pdf}


def swatch(look: Look) -> str:
    """A line with a marker as a small inline SVG, for the page's legends."""
    shapes = {
        "o": '<circle cx="14" cy="6" r="3.6"/>',
        "s": '<path d="M10.6 2.6h6.8v6.8h-6.8z"/>',
        "^": '<path d="M14 1.8l4.2 7.6h-8.4z"/>',
        "D": '<path d="M14 1.4l4.6 4.6-4.6 4.6-4.6-4.6z"/>',
        "v": '<path d="M14 10.2l4.2-7.6h-8.4z"/>',
        "P": '<path d="M12.6 2h2.8v2.6h2.6v2.8h-2.6v2.6h-2.8v-2.6h-2.6v-2.8h2.6z"/>',
        "X": '<path d="M10.4 4l2-2 1.6 1.6 1.6-1.6 2 2-1.6 2 1.6 2-2 2-1.6-1.6-1.6 1.6-2-2 1.6-2z"/>',
    }
    lengths = " ".join(f"{1.5 * length:g}" for length in look.dash[1]) or "none"
    line = f'<path d="M0 6h28" stroke="currentColor" stroke-width="2" stroke-dasharray="{lengths}"/>'
    return (
        f'<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true" fill="currentColor" '
        f'style="color:var({look.css_variable})">{line}{shapes[look.marker]}</svg>'
    )


def _figure(width_in: float, height_in: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width_in, height_in), layout=ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06, wspace=0.02))
    FigureCanvasAgg(figure)
    return figure


def _settings() -> AbstractContextManager[None]:
    import matplotlib as mpl

    return mpl.rc_context(RC)  # restores what the caller had


def _save(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=144, metadata=metadata)
    return buffer.getvalue()


def _add_legend(figure: Figure, legend: Mapping[str, Look], width_in: float) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.dash, label=label)
        for label, look in legend.items()
    ]
    longest = max(map(len, legend))
    per_row = max(1, int(width_in / (0.09 * longest + 0.6)))
    figure.legend(handles=handles, loc="outside upper left", ncols=min(per_row, len(handles)))


def _for_page(svg: str, title: str, prefix: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title, quote=True)}"', 1)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return re.sub("|".join(CSS_COLORS), lambda match: f"var({CSS_COLORS[match.group()]})", svg)
