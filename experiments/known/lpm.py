"""`experiment=known_lpm`: how much of the prompts is found in a small cache, by the order in which requests start.

Lianmin Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from experiments.composed import Composed
from experiments.known.result import Cell, Claim, KnownResult, made, point_of, tell
from experiments.report.axes import scale
from experiments.report.charts import Chart, Panel
from experiments.report.style import MUTED, Look
from experiments.storage import StoredRun
from experiments.workloads import checks
from schedulers import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = {"lpm": Look(0), "chunked_prefill": Look(1), "random": Look(4)}

#: By policy and tokens in the cache.
Runs = Mapping[str, Mapping[int, StoredRun]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/known_lpm.yaml for each key."""

    num_blocks: list[int]
    enough_blocks: int
    patience_s: float | None

    def __post_init__(self) -> None:
        if not isinstance(self.num_blocks, list) or not self.num_blocks:
            raise InputError(f"question.num_blocks={self.num_blocks}: it must be a list such as [2000, 4000]")
        for count in (*self.num_blocks, self.enough_blocks):
            checks.count("question.num_blocks and enough_blocks", count)
        if self.patience_s is not None:
            checks.positive("question.patience_s", self.patience_s)


def lpm(composed: Composed) -> None:
    """Serve prompts with shared beginnings in all orders, with caches of all sizes."""
    tell(known_lpm(composed), composed)


def known_lpm(composed: Composed) -> KnownResult:
    """The result, its runs made unless they are stored."""
    question = composed.question(Question)

    def run_of(policy: str, num_blocks: int) -> StoredRun:
        values: dict[str, Any] = {"engine.num_blocks": num_blocks}
        if policy == "lpm":
            values["scheduler.patience_s"] = question.patience_s
        return made(point_of(composed, policy, values))

    block_size = composed.config.engine.block_size
    runs = {
        policy: {count * block_size: run_of(policy, count) for count in sorted(question.num_blocks)} for policy in LOOKS
    }
    best = run_of("chunked_prefill", question.enough_blocks)
    if not hit_share(best):
        raise InputError("workload: no prompt begins like another; choose one with prefixes, such as shared_prefixes")
    point = point_of(composed, "lpm", {})
    rows = [_row(policy, tokens, stored) for policy, by_size in runs.items() for tokens, stored in by_size.items()]
    return KnownResult(
        name="known_lpm",
        title="Longest cached prefix first, against first come, first served",
        paper="Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs, NeurIPS 2024",
        setting=f"{point.workload.describe()}; {point.timing}",
        table=[*rows, _row("any, all fits", question.enough_blocks * block_size, best)],
        claims=_claims(runs, hit_share(best)),
        chart=_chart(runs, hit_share(best)),
    )


def hit_share(stored: StoredRun) -> float:
    """Share of all prompt tokens that were found in the prefix cache on first admission."""
    return float(stored.summary["prefix_cache_hit_share"])


def _row(policy: str, num_tokens: int, stored: StoredRun) -> dict[str, Cell]:
    summary = stored.summary
    return {
        "order": policy,
        "cache (tokens)": num_tokens,
        "hits (% of prompts)": 100 * hit_share(stored),
        "requests/s": summary["throughput"]["requests_per_s"],
        "E2E mean (s)": summary["e2e_s"]["mean"],
        "E2E max (s)": summary["e2e_s"]["max"],
        "preemptions": summary["preemptions"],
    }


def _claims(runs: Runs, best: float) -> list[Claim]:
    sizes = list(runs["lpm"])
    hits = {policy: [hit_share(stored) for stored in by_size.values()] for policy, by_size in runs.items()}
    speeds = {
        policy: [stored.summary["throughput"]["requests_per_s"] for stored in by_size.values()]
        for policy, by_size in runs.items()
    }
    of_best = {policy: fmean(shares) / best for policy, shares in hits.items()}
    each = ", ".join(
        f"{size:,} tokens: {ours:.1%} against {theirs:.1%}"
        for size, ours, theirs in zip(sizes, hits["lpm"], hits["chunked_prefill"], strict=True)
    )
    gain = speeds["lpm"][0] / speeds["chunked_prefill"][0]
    return [
        Claim(
            "with the longest cached prefix first, more is found than first come, first served",
            f"in a cache of {each}",
            all(ours >= theirs for ours, theirs in zip(hits["lpm"], hits["chunked_prefill"], strict=True))
            and hits["lpm"][0] > 1.1 * hits["chunked_prefill"][0],
        ),
        Claim(
            "it comes to 96 % of the best that any order could find, on average",
            f"{of_best['lpm']:.0%} of {best:.1%}, over all sizes of the cache; first come, first served to "
            f"{of_best['chunked_prefill']:.0%}",
            of_best["lpm"] >= 0.9,
        ),
        Claim(
            "what is found need not be computed, so that more requests are completed a second",
            f"in the smallest cache {gain:.2f} times as many",
            gain > 1.05,
        ),
    ]


def _chart(runs: Runs, best: float) -> Chart:
    speeds = {
        policy: {size: stored.summary["throughput"]["requests_per_s"] for size, stored in by_size.items()}
        for policy, by_size in runs.items()
    }
    hits = {policy: {size: 100 * hit_share(run) for size, run in by_size.items()} for policy, by_size in runs.items()}
    return Chart(
        name="known_lpm",
        title="Hits by order of service",
        caption="Against the size of the KV cache, which holds running requests and what was left by earlier ones. The "
        "dashed line is what is found when everything fits, the most that any order could find.",
        panels=[
            Panel("Prompt tokens found in the cache", partial(_draw, hits, "hits (% of prompt tokens)", 100 * best)),
            Panel("Throughput", partial(_draw, speeds, "completed (requests/s)", None)),
        ],
        legend=LOOKS,
        columns=2,
    )


def _draw(values: Mapping[str, Mapping[int, float]], label: str, best: float | None, axes: Axes) -> None:
    for policy, by_size in values.items():
        look = LOOKS[policy]
        axes.plot([size / 1e3 for size in by_size], list(by_size.values()), color=look.color, marker=look.marker)
    sizes = [size / 1e3 for size in values["lpm"]]
    shown = [value for by_size in values.values() for value in by_size.values()]
    scale(axes, "y", [*shown, best or 0.0], log=False)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.set(xlabel="KV cache (thousand tokens)", ylabel=label)
    if best is not None:
        axes.axhline(best, color=MUTED[0], linewidth=1, linestyle=(0, (3, 3)))
