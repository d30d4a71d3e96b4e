"""What was found of a workload, as lines of text and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from experiments.describe.sharing import Sharing
from experiments.describe.traffic import Traffic
from experiments.workloads import WorkloadRequest

PERCENTS = (1, 10, 50, 90, 99)


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
    blocks = f"{sharing.num_blocks:,} of {sharing.block_size} tokens"
    lines += [
        "",
        f"blocks           {blocks} in prompts; seen before: {sharing.sizes[-1].lru:.1%}",
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
        "output": [request.num_answer_tokens for request in requests],
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
        told = f"mean {np.mean(turns):.3g}, P50 {np.percentile(turns, 50):g}, max {max(turns)}"
        lines.append(f"sessions         {len(turns):,}; turns: {told}")
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
