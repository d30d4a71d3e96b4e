"""The table of all points: one row a run, sorted by a click on a heading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from urllib.parse import quote

from experiments.report.charts import swatch
from experiments.report.study import Point, Study


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of the summary: its heading (group, name, unit), where it is, and the factor to its unit."""

    group: str
    name: str
    path: tuple[str, ...]
    factor: float = 1.0
    count: bool = False


COLUMNS = (
    Column("Requests", "completed", ("completed",), count=True),
    Column("Requests", "aborted", ("aborted",), count=True),
    Column("TTFT (s)", "mean", ("ttft_s", "mean")),
    Column("TTFT (s)", "P50", ("ttft_s", "p50")),
    Column("TTFT (s)", "P99", ("ttft_s", "p99")),
    Column("TPOT (ms)", "mean", ("tpot_s", "mean"), 1e3),
    Column("TPOT (ms)", "P50", ("tpot_s", "p50"), 1e3),
    Column("TPOT (ms)", "P99", ("tpot_s", "p99"), 1e3),
    Column("ITL (ms)", "P99", ("itl_s", "p99"), 1e3),
    Column("E2E (s)", "P50", ("e2e_s", "p50")),
    Column("E2E (s)", "P99", ("e2e_s", "p99")),
    Column("Within SLO", "%", ("goodput", "share"), 100.0),
    Column("Within SLO", "requests/s", ("goodput", "requests_per_s")),
    Column("Throughput", "requests/s", ("throughput", "requests_per_s")),
    Column("Throughput", "output tokens/s", ("throughput", "output_tokens_per_s")),
    Column("Batch", "mean", ("batch_size", "mean")),
    Column("KV in use (%)", "mean", ("kv_usage", "mean"), 100.0),
    Column("KV in use (%)", "max", ("kv_usage", "max"), 100.0),
    Column("Preemptions", "count", ("preemptions",), count=True),
    Column("Prefix hits", "% of prompt", ("prefix_cache_hit_share",), 100.0),
)

#: Those of a single priority, lower numbers being more urgent.
OF_A_PRIORITY = (
    Column("Requests", "count", ("requests",), count=True),
    *(column for column in COLUMNS if column.path[0] in ("ttft_s", "tpot_s") or column.path == ("goodput", "share")),
)


def points_table(study: Study, folder: Path) -> str:
    """All points as an HTML table; the first column links to the run's folder, seen from `folder`."""
    looks = {series.label: series.look for series in study.series}
    rows = []
    for point in sorted(study.points, key=lambda point: (list(looks).index(study.label(point)), point.rate or 0.0)):
        label = study.label(point)
        link = _link(point.folder, folder, label)
        cells = [
            f'<th scope="row">{swatch(looks[label])} {link}</th>',
            f"<td>{'-' if point.rate is None else f'{point.rate:g}'}</td>",
            f"<td>{escape(str(point.axes.get('seed', '-')))}</td>",
        ]
        cells += [_cell(point, column) for column in COLUMNS]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = _head(["Scheduler", "Rate (requests/s)", "Seed"], COLUMNS)
    return (
        f'<div class="scroll" tabindex="0"><table class="sortable">{head}<tbody>{"".join(rows)}</tbody></table></div>'
    )


def summary_table(point: Point) -> str:
    """The figures of a single run, one a row."""
    rows = []
    for column in COLUMNS:
        name = f"{column.group} {column.name}".strip()
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{_cell(point, column)}</tr>')
    return f'<div class="scroll"><table class="narrow"><tbody>{"".join(rows)}</tbody></table></div>'


def priorities_table(point: Point) -> str:
    """What requests of each priority saw in a single run, a row a priority; nothing where there is but one."""
    rows = []
    for priority in point.summary.get("by_priority", ()):
        cells = "".join(
            _cell(point, replace(column, path=("by_priority", priority, *column.path))) for column in OF_A_PRIORITY
        )
        rows.append(f'<tr><th scope="row">{escape(priority)}</th>{cells}</tr>')
    if not rows:
        return ""
    head = _head(["Priority"], OF_A_PRIORITY)
    return f'<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def number(value: float | None, *, count: bool = False) -> str:
    """Three significant digits; counts and what is 100 or more as whole numbers; a dash for what is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if count or abs(value) >= 99.95 or value == 0 else f"{value:#.3g}"


def _head(first: Sequence[str], columns: Sequence[Column]) -> str:
    groups: list[tuple[str, list[str]]] = []
    for column in columns:
        if not groups or groups[-1][0] != column.group:
            groups.append((column.group, []))
        groups[-1][1].append(column.name)
    upper = "".join(f"<th rowspan=2 scope=col>{escape(name)}</th>" for name in first)
    upper += "".join(
        f'<th colspan={len(names)} scope=colgroup class="group">{escape(group)}</th>' for group, names in groups
    )
    lower = "".join(f"<th scope=col>{escape(name)}</th>" for _, names in groups for name in names)
    return f"<thead><tr>{upper}</tr><tr>{lower}</tr></thead>"


def _cell(point: Point, column: Column) -> str:
    value = point.value(*column.path)
    if value is None:
        return f"<td>{number(None)}</td>"
    value *= column.factor
    return f'<td data-value="{value!r}">{number(value, count=column.count)}</td>'


def _link(target: Path, folder: Path, label: str) -> str:
    place = Path(os.path.relpath(target, folder)).as_posix()
    return f'<a href="{escape(quote(place))}/">{escape(label)}</a>'
