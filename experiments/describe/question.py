"""The question, and the folder that holds its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.composed import Composed
from experiments.describe.figures import chart_of
from experiments.describe.sharing import share
from experiments.describe.table import summarize, table
from experiments.describe.traffic import Traffic, due_s
from experiments.storage import write_files
from experiments.workloads import build, checks
from schedulers import InputError

if TYPE_CHECKING:
    from experiments.report.charts import Chart


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/workload.yaml for each key."""

    windows_s: list[float]
    cache_blocks: list[int]
    block_size: int | None

    def __post_init__(self) -> None:
        for name in ("windows_s", "cache_blocks"):
            if not isinstance(getattr(self, name), list):
                raise InputError(f"question.{name}={getattr(self, name)}: it must be a list such as [10, 60]")
        for seconds in self.windows_s:
            checks.positive("question.windows_s", seconds)
        for number in self.cache_blocks:
            checks.count("question.cache_blocks", number)
        if self.block_size is not None:
            checks.count("question.block_size", self.block_size)


def describe(composed: Composed) -> None:
    """`experiment=workload`: describe it, and write what was found to a folder under `results`."""
    question = composed.question(Question)
    workload = build(composed.config.workload)
    requests = workload.requests(composed.config.get("seed"))
    due = due_s(requests)
    traffic = Traffic.of(due, question.windows_s)
    in_order = [requests[index] for index in np.argsort(due, kind="stable").tolist()]
    checks.count("engine.block_size", composed.config.engine.block_size)
    sharing = share(in_order, question.cache_blocks, question.block_size, composed.config.engine.block_size)
    lines = table(workload.describe(), requests, traffic, sharing)
    print("\n".join(lines))
    chart = chart_of(requests, traffic, sharing)
    folder = Path(str(composed.config.results)) / "workload" / composed.choices.get("workload", "given")
    summary = summarize(workload.describe(), requests, traffic, sharing)
    write_files(folder, _files(lines, chart, summary))
    print(f"\nresults: {folder / 'report.html'}")


def _files(lines: Sequence[str], chart: Chart, summary: dict[str, Any]) -> dict[str, bytes]:
    from experiments.report.charts import chart_files
    from experiments.report.page import chart_section, page

    title = "Workload"
    text = f"<header><h1>{title}</h1></header><section><pre>{escape(chr(10).join(lines))}</pre></section>"
    return {
        **chart_files(chart),
        "report.html": page(title, [text, chart_section(chart)]),
        "summary.json": (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode(),
    }
