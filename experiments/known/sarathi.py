"""`experiment=known_sarathi`: chunked prefill and hybrid batches, each alone and both together.

Amey Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024: the ablation
of its Table 4, and the capacity under a target for the time between tokens of its section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import metrics
from experiments.composed import Composed
from experiments.known.drawing import bars
from experiments.known.result import Cell, Claim, KnownResult, made, point_of, tell
from experiments.report.axes import scale, target_line
from experiments.report.charts import Chart, Panel
from experiments.report.style import Look
from experiments.storage import StoredRun
from experiments.workloads import checks
from schedulers import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOTH, CHUNKS, HYBRID, FIRST = "both (Sarathi-Serve)", "chunks only", "hybrid only", "prefill first (vLLM V0)"

#: Policies of conf/scheduler, and whether they compute prompts in chunks.
POLICIES = {
    BOTH: ("chunked_prefill", True),
    CHUNKS: ("alternating", True),
    HYBRID: ("orca", False),
    FIRST: ("fcfs", False),
}
#: Capacity is not looked for this many times above or below the first rate.
FARTHEST = 1000

LOOKS = {BOTH: Look(0), CHUNKS: Look(2), HYBRID: Look(4), FIRST: Look(1)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/known_sarathi.yaml for each key."""

    chunk_budget: int
    whole_budget: int
    tbt_s: float
    queueing_s: float
    precision: float

    def __post_init__(self) -> None:
        checks.count("question.chunk_budget", self.chunk_budget)
        checks.count("question.whole_budget", self.whole_budget)
        checks.positive("question.tbt_s", self.tbt_s)
        checks.positive("question.queueing_s", self.queueing_s)
        checks.positive("question.precision", self.precision)
        if self.precision < 0.01:
            raise InputError(
                f"question.precision={self.precision}: it must be at least 0.01; fewer requests tell no more"
            )


def sarathi(composed: Composed) -> None:
    """Serve one workload in all four ways, and find how much of it each can take."""
    tell(known_sarathi(composed), composed)


def known_sarathi(composed: Composed) -> KnownResult:
    """The result, its runs made unless they are stored."""
    question = composed.question(Question)

    def run_of(name: str, values: Mapping[str, Any]) -> StoredRun:
        policy, chunked = POLICIES[name]
        budget = question.chunk_budget if chunked else question.whole_budget
        return made(point_of(composed, policy, {"scheduler.token_budget": budget, **values}))

    runs = {name: run_of(name, {}) for name in POLICIES}
    if not all(stored.summary["itl_s"]["count"] for stored in runs.values()):
        raise InputError("workload.output: outputs of a single token have no time between tokens; give longer ones")
    capacities = {
        name: capacity(
            lambda rate, name=name: _meets(run_of(name, {"workload.rate": rate}).summary, question),  # type: ignore[misc]
            composed.config.workload.rate,
            question.precision,
        )
        for name in POLICIES
    }
    table = [_row(name, stored.summary, capacities[name]) for name, stored in runs.items()]
    point = point_of(composed, "chunked_prefill", {})
    return KnownResult(
        name="known_sarathi",
        title="Chunked prefill and hybrid batches, each alone and together",
        paper="Agrawal et al., Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve, OSDI 2024, "
        "Table 4 and section 5.1",
        setting=f"{point.workload.describe()}; {question.chunk_budget} tokens a step with chunks, "
        f"{question.whole_budget:,} without; {point.timing}",
        table=table,
        claims=_claims(runs, capacities, question),
        chart=_chart(runs, capacities, question),
    )


def capacity(meets: Callable[[float], bool], start: float, precision: float) -> float:
    """The highest rate that meets a target, by bisection, to within a share `precision` of itself, from below.

    Rates are halved from `start` until one meets the target, doubled from there until one does not, and then tried
    between these two.

    Raises:
        InputError: there are no two such rates within a factor of `FARTHEST` of `start`.
    """
    known: dict[float, bool] = {}

    def is_met(rate: float) -> bool:
        if rate not in known:
            known[rate] = meets(rate)
        return known[rate]

    low = start
    while not is_met(low):
        low /= 2
        if low * FARTHEST < start:
            raise InputError(
                f"question.tbt_s and queueing_s: no rate down to {low:.3g} requests/s meets them; allow more"
            )
    high = 2 * low
    while is_met(high):
        low, high = high, 2 * high
        if low > start * FARTHEST:
            raise InputError(
                f"question.tbt_s and queueing_s: even {low:.3g} requests/s meet them; allow less, or give more "
                "workload.num_requests"
            )
    while high / low > 1 + precision:
        middle = float(f"{(low * high) ** 0.5:.4g}")
        low, high = (middle, high) if is_met(middle) else (low, middle)
    return low


def _meets(summary: Mapping[str, Any], question: Question) -> bool:
    return bool(summary["itl_s"]["p99"] <= question.tbt_s and summary["queueing_s"]["p50"] <= question.queueing_s)


def _row(name: str, summary: Mapping[str, Any], rate: float) -> dict[str, Cell]:
    return {
        "batching": name,
        "TTFT P50 (s)": summary["ttft_s"]["p50"],
        "TBT P50 (ms)": 1e3 * summary["itl_s"]["p50"],
        "TBT P99 (ms)": 1e3 * summary["itl_s"]["p99"],
        "TBT max (ms)": 1e3 * summary["itl_s"]["max"],
        "E2E mean (s)": summary["e2e_s"]["mean"],
        "capacity (requests/s)": rate,
    }


def _claims(runs: Mapping[str, StoredRun], capacities: Mapping[str, float], question: Question) -> list[Claim]:
    tbt = {name: 1e3 * stored.summary["itl_s"]["p99"] for name, stored in runs.items()}
    ttft = {name: stored.summary["ttft_s"]["p50"] for name, stored in runs.items()}
    gain = capacities[BOTH] / capacities[FIRST]

    def listed(values: Mapping[str, float], unit: str) -> str:
        return ", ".join(f"{name} {values[name]:.3g} {unit}" for name in sorted(values, key=values.__getitem__))

    return [
        Claim("P99 TBT is lowest with both", listed(tbt, "ms"), min(tbt, key=tbt.__getitem__) == BOTH),
        Claim(
            "median TTFT with both lies between hybrid batches alone, which have the lowest, and chunks alone",
            listed(ttft, "s"),
            ttft[HYBRID] <= ttft[BOTH] <= ttft[CHUNKS],
        ),
        Claim(
            "prefill ahead of decodes stalls generation: its P99 TBT is a multiple of that with both",
            f"{tbt[FIRST] / tbt[BOTH]:.1f} times",
            tbt[FIRST] > 2 * tbt[BOTH],
        ),
        Claim(
            "with P99 TBT held, both take a multiple of prefill-first's load (Mistral-7B on an A100: up to 2.6 times)",
            f"{capacities[BOTH]:.3g} against {capacities[FIRST]:.3g} requests/s at P99 TBT within "
            f"{1e3 * question.tbt_s:g} ms: {gain:.1f} times",
            gain >= 2,
        ),
    ]


def _chart(runs: Mapping[str, StoredRun], capacities: Mapping[str, float], question: Question) -> Chart:
    goal = f"P99 TBT within {1e3 * question.tbt_s:g} ms"
    return Chart(
        name="known_sarathi",
        title="Chunks and hybrid batches",
        caption="Left: the lower left is better. Middle: the share of gaps between tokens that are longer than the one "
        f"on the x axis; the dashed line is the target. Right: the highest rate with {goal} and a median queueing time "
        f"within {question.queueing_s:g} s.",
        panels=[
            Panel("First token against later ones", partial(_draw_tradeoff, runs)),
            Panel("How long tokens are waited for", partial(_draw_tails, runs, question.tbt_s)),
            Panel(f"Capacity at {goal}", partial(bars, capacities, LOOKS, "requests/s")),
        ],
        legend=LOOKS,
    )


def _draw_tradeoff(runs: Mapping[str, StoredRun], axes: Axes) -> None:
    xs = [1e3 * stored.summary["itl_s"]["p99"] for stored in runs.values()]
    ys = [stored.summary["ttft_s"]["p50"] for stored in runs.values()]
    for name, x, y in zip(runs, xs, ys, strict=True):
        axes.plot(x, y, LOOKS[name].marker, color=LOOKS[name].color, markersize=9)
    scale(axes, "x", xs, log=False)
    scale(axes, "y", ys, log=False)
    axes.set(xlabel="P99 TBT (ms)", ylabel="median TTFT (s)")


def _draw_tails(runs: Mapping[str, StoredRun], tbt_s: float, axes: Axes) -> None:
    shares = np.geomspace(1e-4, 1, 300)
    for name, stored in runs.items():
        gaps = np.quantile(metrics.itl_s(stored.requests), 1 - shares) * 1e3
        axes.plot(gaps, shares, color=LOOKS[name].color)
    axes.set(
        xscale="log", yscale="log", ylim=(1e-4, 1), xlabel="gap between tokens (ms)", ylabel="share of longer gaps"
    )
    target_line(axes, "x", 1e3 * tbt_s, "target")
