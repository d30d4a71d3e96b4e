"""The question, its answer as numbers and as a table, and the files that hold both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from experiments.config import Composed
from experiments.describe.figures import chart_of
from experiments.describe.sharing import Blocks, blocks_of, lru_hits, served_hits
from experiments.describe.traffic import Traffic, due_s
from experiments.storage import write_files
from experiments.workloads import WorkloadRequest, build, checks
from schedulers import InputError

#: Sizes of caches between which the curve of hit rates is drawn.
CURVE_POINTS = 12

PERCENTS = (1, 10, 50, 90, 99)


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


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a cache of `num_blocks` blocks finds (None: of any size), as shares of all blocks of prompts, 0 to 1.

    Attributes:
        lru: by `lru_hits`.
        served: by `served_hits`; None where it was not asked.
    """

    num_blocks: int | None
    lru: float
    served: float | None


@dataclass(frozen=True, slots=True)
class Sharing:
    """What prompts have in common; `sizes` are those asked for, `curve` goes from small caches to the largest useful.

    Attributes:
        num_blocks: of all prompts, partly filled last ones included.
        num_distinct: different ones among those with a name.
    """

    block_size: int
    num_blocks: int
    num_distinct: int
    sizes: list[CacheSize]
    curve: list[CacheSize]


def describe(composed: Composed) -> None:
    """`experiment=workload`: describe it, and write what was found to a folder under `results`."""
    question = composed.question(Question)
    workload = build(composed.config.workload)
    requests = workload.requests(composed.config.seed)
    due = due_s(requests)
    traffic = Traffic.of(due, question.windows_s)
    in_order = [requests[index] for index in np.argsort(due, kind="stable").tolist()]
    sharing = share(in_order, question, composed.config.engine.block_size)
    lines = table(workload.describe(), requests, traffic, sharing)
    print("\n".join(lines))
    chart = chart_of(requests, traffic, sharing)
    folder = Path(str(composed.config.results)) / "workload" / composed.choices.get("workload", "given")
    summary = summarize(workload.describe(), requests, traffic, sharing)
    write_files(folder, _files(lines, chart, summary))
    print(f"\nresults: {folder / 'report.html'}")


def share(requests: Sequence[WorkloadRequest], question: Question, engine_block_size: int) -> Sharing | None:
    """What the prompts of requests have in common, in this order; None where the workload knows of nothing.

    Raises:
        InputError: as `served_hits`.
    """
    sizes_of_trace = {r.trace_block_tokens for r in requests if r.hash_ids and not r.content_id}
    own = sizes_of_trace.pop() if len(sizes_of_trace) == 1 and all(r.hash_ids for r in requests) else engine_block_size
    block_size = question.block_size or own
    served = [blocks_of(request, block_size) for request in requests]
    names = {name for blocks in served for name in (*blocks.prompt, *blocks.output)} - {None}
    if not names:
        return None
    num_blocks = sum(len(blocks.prompt) for blocks in served)

    def look_up(capacity: int | None, *, through_engine: bool) -> CacheSize:
        hits = served_hits(requests, block_size, capacity) / num_blocks if through_engine else None
        return CacheSize(capacity, lru_hits(served, capacity) / num_blocks, hits)

    return Sharing(
        block_size,
        num_blocks,
        len(names),
        [look_up(capacity, through_engine=True) for capacity in (*question.cache_blocks, None)],
        [look_up(capacity, through_engine=False) for capacity in _curve_sizes(served, len(names))],
    )


def _curve_sizes(served: Sequence[Blocks], num_distinct: int) -> list[int]:
    """Cache sizes from that of the largest request to that of everything, each by the same factor larger."""
    largest = max(len(blocks.prompt) for blocks in served)
    ends = sorted((largest, num_distinct))
    return sorted({round(size) for size in np.geomspace(*ends, CURVE_POINTS).tolist()})


def table(what: str, requests: Sequence[WorkloadRequest], traffic: Traffic, sharing: Sharing | None) -> list[str]:
    """All of it as lines of text."""
    following = [request for request in requests if request.follows]
    lines = [what, "", f"requests         {len(requests):,}"]
    if following:
        lines[-1] += (
            f", {len(following):,} of which follow others; rates are those of an engine that answers in no time"
        )
    rate = "all at once" if traffic.rate is None else f"{traffic.rate:.3g}/s over {traffic.span_s:,.0f} s"
    cv = "-" if traffic.gap_cv is None else f"{traffic.gap_cv:.2f}"
    lines.append(f"arrivals         {rate}; gaps: coefficient of variation {cv} (Poisson: 1)")
    for window in traffic.windows:
        peak = f"{window.peak_rate:.3g}/s, {window.peak_rate / (traffic.rate or 1):.2f} times the mean"
        lines.append(
            f"  in {f'{window.seconds:g} s':<11} index of dispersion {window.dispersion:.2f} (Poisson: 1); peak {peak}"
        )
    lines += ["", f"{'tokens':<17}{'mean':>9}" + "".join(f"{f'P{p}':>9}" for p in PERCENTS) + f"{'max':>9}"]
    for name, stats in _lengths(requests).items():
        lines.append(f"  {name:<15}" + "".join(f"{value:>9,.0f}" for value in stats.values()))
    lines += _session_lines(requests) + _class_lines(requests)
    if sharing is None:
        return [*lines, "", "shared prefixes  the workload knows of none"]
    seen = sharing.sizes[-1]
    lines += [
        "",
        f"blocks           {sharing.num_blocks:,} of {sharing.block_size} tokens in prompts; seen before {seen.lru:.1%}",
        f"{'  a cache of':<17}{'LRU count':>12}{'KV cache':>12}",
    ]
    for size in sharing.sizes:
        label = "any size" if size.num_blocks is None else f"{size.num_blocks:,} blocks"
        lines.append(f"  {label:<15}{size.lru:>12.1%}{size.served or 0:>12.1%}")
    return lines


def summarize(
    what: str, requests: Sequence[WorkloadRequest], traffic: Traffic, sharing: Sharing | None
) -> dict[str, Any]:
    """The same as plain data, for summary.json."""
    sessions = Counter(request.session_id for request in requests if request.session_id)
    return {
        "workload": what,
        "requests": len(requests),
        "following": sum(bool(request.follows) for request in requests),
        "span_s": traffic.span_s,
        "rate": traffic.rate,
        "gap_cv": traffic.gap_cv,
        "windows": [asdict(window) for window in traffic.windows],
        "lengths": _lengths(requests),
        "sessions": len(sessions),
        "classes": dict(Counter(request.class_name for request in requests)),
        "sharing": None if sharing is None else asdict(sharing),
    }


def _lengths(requests: Sequence[WorkloadRequest]) -> dict[str, dict[str, float]]:
    columns = {
        "prompt": [request.num_prompt_tokens for request in requests],
        "output": [min(r.num_output_tokens, r.max_tokens or r.num_output_tokens) for r in requests],
    }
    return {
        name: {
            "mean": float(np.mean(values)),
            **{f"p{p}": float(np.percentile(values, p)) for p in PERCENTS},
            "max": float(max(values)),
        }
        for name, values in columns.items()
    }


def _session_lines(requests: Sequence[WorkloadRequest]) -> list[str]:
    turns = list(Counter(request.session_id for request in requests if request.session_id).values())
    thinking_s = [request.think_s for request in requests if request.follows]
    lines = []
    if turns:
        middle = np.percentile(turns, 50)
        lines.append(f"sessions         {len(turns):,}, turns: mean {np.mean(turns):.3g}, P50 {middle:g}, max {max(turns)}")
    if thinking_s:
        lines.append(f"think time       mean {np.mean(thinking_s):.3g} s, P99 {np.percentile(thinking_s, 99):.3g} s")
    return ["", *lines] if lines else []


def _class_lines(requests: Sequence[WorkloadRequest]) -> list[str]:
    kinds = Counter(
        (request.class_name, request.priority, request.client_id) for request in requests if request.class_name
    )
    lines = [
        f"  {name:<15}{count / len(requests):>9.1%}  priority {priority}" + (f", client {client}" if client else "")
        for (name, priority, client), count in sorted(kinds.items())
    ]
    return ["", "classes", *lines] if lines else []


def _files(lines: Sequence[str], chart: Any, summary: dict[str, Any]) -> dict[str, bytes]:
    from experiments.report.charts import chart_files
    from experiments.report.page import chart_section, page

    title = "Workload"
    text = f"<header><h1>{title}</h1></header><section><pre>{escape(chr(10).join(lines))}</pre></section>"
    return {
        **chart_files(chart),
        "report.html": page(title, [text, chart_section(chart)]),
        "summary.json": (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode(),
    }
