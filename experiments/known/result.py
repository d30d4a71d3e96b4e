"""A known result beside its paper: a table, a chart, and a verdict on each thing that the paper says."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from experiments import run, storage
from experiments.composed import Composed
from experiments.config import Point, read_point
from experiments.report.charts import Chart, chart_files
from experiments.report.page import chart_section, page
from experiments.storage import StoredRun
from schedulers import InputError

Cell = str | float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that a paper says, and what came of it.

    Attributes:
        paper: what it says.
        here: what came out, in figures.
        agrees: whether that is what the paper says.
        because: what explains a difference, in size or in kind; "" if there is nothing to explain.
    """

    paper: str
    here: str
    agrees: bool
    because: str = ""

    @property
    def verdict(self) -> str:
        """Whether they agree, and why not, or not quite."""
        said = "agrees" if self.agrees else "does not agree"
        return f"{said}: {self.because}" if self.because else said


@dataclass(frozen=True, slots=True)
class KnownResult:
    """What an experiment on a paper's result came to.

    Attributes:
        name: of its folder and files, such as "known_vtc".
        title: in a few words.
        paper: authors, title, venue.
        setting: what was run, in a sentence.
        table: a row for each run or policy, all with the same headings; a number is in the heading's unit.
    """

    name: str
    title: str
    paper: str
    setting: str
    table: Sequence[Mapping[str, Cell]]
    claims: Sequence[Claim]
    chart: Chart

    def lines(self) -> list[str]:
        """The result as text."""
        said = [self.title, f"  {self.paper}", f"  {self.setting}", "", *_text_table(self.table)]
        for claim in self.claims:
            said += ["", f"paper: {claim.paper}", f"here:  {claim.here}", f"       {claim.verdict}"]
        return said

    def files(self) -> dict[str, bytes]:
        """The result's folder: figures, a page, the text, and everything as JSON."""
        content = {
            "title": self.title,
            "paper": self.paper,
            "setting": self.setting,
            "table": [{name: _finite(cell) for name, cell in row.items()} for row in self.table],
            "claims": [asdict(claim) for claim in self.claims],
        }
        return {
            **chart_files(self.chart),
            "index.html": page(self.title, self._sections()),
            f"{self.name}.txt": ("\n".join(self.lines()) + "\n").encode(),
            f"{self.name}.json": (json.dumps(content, indent=2, allow_nan=False) + "\n").encode(),
        }

    def _sections(self) -> list[str]:
        head = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in self.table[0]) + "</tr>"
        rows = "".join("<tr>" + "".join(map(_html_cell, row.values())) + "</tr>" for row in self.table)
        verdicts = "".join(
            f"<dt>{escape(claim.paper)}</dt><dd>{escape(claim.here)}; <strong>{escape(claim.verdict)}</strong></dd>"
            for claim in self.claims
        )
        return [
            f"<h1>{escape(self.title)}</h1><p>{escape(self.paper)}</p><p>{escape(self.setting)}</p>",
            f"<section><h2>What the paper says, and what came out</h2><dl>{verdicts}</dl></section>",
            chart_section(self.chart),
            f'<section><h2>Figures</h2><div class="scroll"><table><thead>{head}</thead>{rows}</table></div></section>',
        ]


def tell(result: KnownResult, composed: Composed) -> None:
    """Print a result and write its folder.

    Raises:
        InputError: it cannot be written.
    """
    folder = Path(composed.config.results) / result.name
    storage.write_files(folder, result.files())
    print("", *result.lines(), "", f"results: {folder / 'index.html'}", sep="\n")


def point_of(composed: Composed, scheduler: str, values: Mapping[str, Any]) -> Point:
    """The point under a policy of conf/scheduler, with other values at dotted keys. Known results are simulated.

    Raises:
        InputError: a value is refused.
    """
    if composed.choices.get("mode", "sim") != "sim":
        raise InputError("mode=real: known results are simulated; leave mode out")
    return read_point(composed.with_scheduler(scheduler).with_values(values))


def made(point: Point) -> StoredRun:
    """The run of a point, from its folder if it was made before.

    Raises:
        TwinserveError: as `run.ensure`.
    """
    print(run.ensure(point), flush=True)
    return storage.read_run(point.folder)


def _text_table(table: Sequence[Mapping[str, Cell]]) -> list[str]:
    """Columns as wide as their widest cell, the first to the left and all others to the right."""
    texts = [list(table[0]), *([_text(cell) for cell in row.values()] for row in table)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in texts]


def _html_cell(cell: Cell) -> str:
    text = escape(_text(cell))
    return f'<th scope="row">{text}</th>' if isinstance(cell, str) else f"<td>{text}</td>"


def _text(cell: Cell) -> str:
    """A number with three digits that matter, or all before the point."""
    if isinstance(cell, str):
        return cell
    if cell is None or not math.isfinite(cell):
        return "-"
    if cell == 0 or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.{2 - math.floor(math.log10(abs(cell)))}f}"


def _finite(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
