"""What people look at: the combined report of a sweep and the page of a single run.

A report is drawn from stored runs alone, so it can be drawn again at any time: `redraw`.
"""

from __future__ import annotations

from pathlib import Path

from experiments.report.description import CONTENTS, Contents, RunDescription
from experiments.report.single import plot_run, write_run_page
from experiments.report.study import Point
from experiments.report.sweep import write_report
from experiments.storage import is_complete
from schedulers.errors import InputError

__all__ = ["Point", "RunDescription", "plot_run", "redraw", "write_report", "write_run_page"]


def redraw(folder: Path, *, rate: float | None = None) -> Path:
    """Draw the report or the run in `folder` again from what is stored; returns the page's path.

    Args:
        folder: of a sweep that has a report, or of a single run.
        rate: of a sweep, the rate to look into closely.

    Raises:
        InputError: the folder holds neither, or is damaged.
    """
    if (folder / CONTENTS).is_file():
        contents = Contents.read(folder)
        return write_report(folder, contents.points, contents.title, contents.description, rate=rate)
    if is_complete(folder):
        return write_run_page(folder)
    raise InputError(
        f"{folder} holds neither a report ({CONTENTS}) nor a complete run (summary.json): there is nothing to draw"
    )
