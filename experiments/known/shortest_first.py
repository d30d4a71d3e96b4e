"""`experiment=known_shortest_first`: mean latency when short outputs need not wait for long ones.

Bingyang Wu et al., "Fast Distributed Inference Serving for Large Language Models" (FastServe), arXiv:2305.05920, 2023,
which does not know how long outputs will be; Linus Schrage, "A Proof of the Optimality of the Shortest Remaining
Processing Time Discipline", Operations Research 1968, which does; and Rana Shahout et al., "Don't Stop Me Now:
Embedding Based Scheduling for LLMs" (TRAIL), ICLR 2025, which predicts it with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments import metrics
from experiments.composed import Composed
from experiments.known.result import Cell, Claim, KnownResult, made, point_of, tell
from experiments.report.axes import explodes, rate_axis, scale
from experiments.report.charts import Chart, Panel
from experiments.report.style import Look
from experiments.storage import StoredRun
from experiments.workloads import checks
from schedulers import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FCFS, MLFQ, SRPT, RECOMPUTING = "FCFS", "MLFQ", "SRPT", "MLFQ, recomputing"

#: By policy and rate.
Runs = Mapping[str, Mapping[float, StoredRun]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/known_shortest_first.yaml for each key."""

    rates: list[float]
    sigmas: list[float]
    max_num_seqs: int

    def __post_init__(self) -> None:
        checks.count("question.max_num_seqs", self.max_num_seqs)
        if not isinstance(self.rates, list) or not self.rates:
            raise InputError(f"question.rates={self.rates}: it must be a list such as [2, 4]")
        if not isinstance(self.sigmas, list):
            raise InputError(f"question.sigmas={self.sigmas}: it must be a list such as [0.5, 1]")
        for rate in self.rates:
            checks.rate("question.rates", rate)
        for sigma in self.sigmas:
            checks.positive("question.sigmas", sigma)


def shortest_first(composed: Composed) -> None:
    """Serve outputs of very different lengths in all orders at all rates."""
    tell(known_shortest_first(composed), composed)


def known_shortest_first(composed: Composed) -> KnownResult:
    """The result, its runs made unless they are stored."""
    question = composed.question(Question)
    policies = {
        FCFS: ("chunked_prefill", composed),
        MLFQ: ("mlfq", composed),
        RECOMPUTING: ("mlfq", composed.with_values({"engine.prefix_caching": False})),
        SRPT: ("srpt", composed.with_choice("predictor", "oracle")),
    }
    for sigma in question.sigmas:
        noisy = composed.with_choice("predictor", "noisy").with_values({"predictor.sigma": sigma})
        policies[_noisy(sigma)] = ("srpt", noisy)
    points = {
        name: {
            rate: point_of(variant, policy, {"workload.rate": rate, "scheduler.max_num_seqs": question.max_num_seqs})
            for rate in sorted(question.rates)
        }
        for name, (policy, variant) in policies.items()
    }
    runs = {name: {rate: made(point) for rate, point in by_rate.items()} for name, by_rate in points.items()}
    point = points[FCFS][max(question.rates)]
    return KnownResult(
        name="known_shortest_first",
        title="Short outputs first: known, predicted or found out, against first come, first served",
        paper="Wu et al. (FastServe), arXiv 2023; Schrage, Operations Research 1968; Shahout et al. (TRAIL), ICLR 2025",
        setting=f"{point.workload.describe()} (the highest of the rates); {point.limits.max_num_seqs} requests at "
        f"once; {point.timing}",
        table=[_row(name, rate, stored) for name, by_rate in runs.items() for rate, stored in by_rate.items()],
        claims=_claims(runs, question.sigmas),
        chart=_chart(runs),
    )


def mean_e2e_s(stored: StoredRun) -> float:
    """Mean time from arrival to the last token (FastServe's job completion time)."""
    return float(stored.summary["e2e_s"]["mean"])


def mean_normalized_s(stored: StoredRun) -> float:
    """Mean over requests of E2E latency per output token (normalized latency, as in Orca and vLLM)."""
    return float(np.nanmean(metrics.e2e_s(stored.requests) / stored.requests.num_output_tokens))


def _noisy(sigma: float) -> str:
    return f"SRPT, predicted (sigma {sigma:g})"


def _row(name: str, rate: float, stored: StoredRun) -> dict[str, Cell]:
    summary = stored.summary
    return {
        "order": name,
        "rate": rate,
        "E2E mean (s)": mean_e2e_s(stored),
        "E2E P50 (s)": summary["e2e_s"]["p50"],
        "E2E P99 (s)": summary["e2e_s"]["p99"],
        "normalized (ms/token)": 1e3 * mean_normalized_s(stored),
        "TTFT mean (s)": summary["ttft_s"]["mean"],
        "preemptions": summary["preemptions"],
    }


def _claims(runs: Runs, sigmas: Sequence[float]) -> list[Claim]:
    rate = max(runs[FCFS])
    mean = {name: mean_e2e_s(by_rate[rate]) for name, by_rate in runs.items()}
    normalized = {name: mean_normalized_s(by_rate[rate]) for name, by_rate in runs.items()}
    gain = {name: mean[FCFS] / value for name, value in mean.items()}

    def said(name: str) -> str:
        return (
            f"at {rate:g} requests/s {mean[name]:.3g} s, FCFS {gain[name]:.2f} times, {mean[FCFS]:.3g} s; "
            f"a token {1e3 * normalized[name]:.3g} ms against {1e3 * normalized[FCFS]:.3g} ms"
        )

    claims = [
        Claim(
            "MLFQ, which knows no lengths, has a lower mean latency than FCFS (FastServe: up to 5.1 times)",
            said(MLFQ),
            gain[MLFQ] > 1.1,
            "the gain grows with load, and 5.1 is the paper's most" if 1.1 < gain[MLFQ] < 5.1 else "",
        ),
        Claim(
            "that takes keeping the KV cache of who is preempted (FastServe swaps it to host memory)",
            f"with recomputation, {mean[RECOMPUTING]:.3g} s",
            mean[RECOMPUTING] > 1.1 * mean[MLFQ],
        ),
        Claim(
            "SRPT, which knows lengths, has the lowest mean",
            said(SRPT),
            mean[SRPT] == min(mean.values()),
        ),
    ]
    for sigma in sigmas:
        most = mean[FCFS] - mean[SRPT]
        kept = (mean[FCFS] - mean[_noisy(sigma)]) / most if most else 1.0
        claims.append(
            Claim(
                "SRPT on imperfect predictions keeps most of that (TRAIL: FCFS's mean is 1.66 to 2.01 times its)",
                f"sigma {sigma:g}: {gain[_noisy(sigma)]:.2f} times, {kept:.0%} of what SRPT gains",
                kept > 0.5,
            )
        )
    return claims


def _chart(runs: Runs) -> Chart:
    looks = {FCFS: Look(0), MLFQ: Look(1), RECOMPUTING: Look(1, 2), SRPT: Look(2)}
    looks |= {name: Look(2, i + 1) for i, name in enumerate(name for name in runs if name not in looks)}
    rate = max(runs[FCFS])
    return Chart(
        name="known_shortest_first",
        title="Latency by order of service",
        caption="Left and middle: means against rate. Right: the share of requests that take longer than the time on "
        f"the x axis, at {rate:g} requests/s; what the mean gains, the longest pay for. KV blocks of who is preempted "
        "stay in the prefix cache until they are needed, but for the line that recomputes.",
        panels=[
            Panel("Mean latency", partial(_draw_means, runs, looks, mean_e2e_s, "E2E mean (s)")),
            Panel("Mean latency per token", partial(_draw_means, runs, looks, mean_normalized_s, "E2E / tokens (s)")),
            Panel("Who pays", partial(_draw_tails, runs, looks, rate)),
        ],
        legend=looks,
    )


def _draw_means(
    runs: Runs, looks: Mapping[str, Look], measure: Callable[[StoredRun], float], label: str, axes: Axes
) -> None:
    shown = []
    for name, by_rate in runs.items():
        look, values = looks[name], [measure(stored) for stored in by_rate.values()]
        axes.plot(list(by_rate), values, color=look.color, marker=look.marker, linestyle=look.dash)
        shown += values
    scale(axes, "y", shown, log=explodes(shown))
    rate_axis(axes, list(runs[FCFS]))
    axes.set_ylabel(label)


def _draw_tails(runs: Runs, looks: Mapping[str, Look], rate: float, axes: Axes) -> None:
    for name, by_rate in runs.items():
        latencies = np.sort(metrics.e2e_s(by_rate[rate].requests))
        shares = 1 - np.arange(len(latencies)) / len(latencies)
        axes.plot(latencies, shares, color=looks[name].color, linestyle=looks[name].dash)
    axes.set(xscale="log", yscale="log", xlabel="E2E latency (s)", ylabel="share of longer ones")
