"""`experiment=known_past_future`: how much memory an admission dares to use, and how many it must evict for that.

Ruihao Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from experiments.composed import Composed
from experiments.known.result import Cell, Claim, KnownResult, made, point_of, tell
from experiments.report.charts import Chart, Panel
from experiments.report.style import Look
from experiments.storage import StoredRun
from experiments.workloads import checks
from schedulers import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = {"past_future": Look(0), "aggressive": Look(1), "conservative": Look(2), "ratio": Look(4)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/known_past_future.yaml for each key."""

    settings: Mapping[str, Mapping[str, Sequence[float]]]
    warm_up: float

    def __post_init__(self) -> None:
        checks.not_negative("question.warm_up", self.warm_up)
        if self.warm_up >= 1:
            raise InputError(f"question.warm_up={self.warm_up}: it must be a share of the run, less than 1")
        if not isinstance(self.settings, dict) or set(self.settings) != set(LOOKS):
            raise InputError(f"question.settings={self.settings}: it must have {', '.join(LOOKS)}")
        for name, of_policy in self.settings.items():
            values = [*of_policy.values()] if isinstance(of_policy, dict) else []
            if len(values) != 1 or not isinstance(values[0], list) or not values[0]:
                raise InputError(
                    f"question.settings.{name}={of_policy}: it must hold a parameter and its values, such as "
                    "{memory_share: [0.9, 0.95]}"
                )


@dataclass(frozen=True, slots=True)
class Admission:
    """An admission in one setting: what it uses, what it evicts, and what it brings.

    Usage and evictions are taken while requests wait, once the engine has warmed up.

    Attributes:
        policy: of conf/scheduler.
        setting: its parameter, such as "memory_share=0.95".
        kv_usage: mean share of the KV cache in use, by time.
        evictions: for each request that finished.
        evictions_before: how many there were during the warm-up.
        output_tokens_per_s: of the whole run.
        tpot_p99_s: of all requests; an eviction is a long time without a token.
    """

    policy: str
    setting: str
    kv_usage: float
    evictions: float
    evictions_before: int
    output_tokens_per_s: float
    tpot_p99_s: float

    @property
    def name(self) -> str:
        """The policy in this setting."""
        return f"{self.policy} {self.setting}"

    @classmethod
    def of(cls, policy: str, setting: str, stored: StoredRun, warm_up: float) -> Admission:
        """From a run.

        Raises:
            InputError: nobody ever waited in it.
        """
        steps, finish_s = stored.steps, stored.requests.finish_s
        end_s = steps.end_s[steps.num_waiting > 0].max(initial=0.0)
        start_s = warm_up * end_s
        counted = (steps.start_s >= start_s) & (steps.end_s <= end_s)
        durations_s = (steps.end_s - steps.start_s) * counted
        if not durations_s.sum():
            raise InputError(f"{policy}: nobody ever waited; give a higher workload.rate or more workload.num_requests")
        num_finished = int(((finish_s >= start_s) & (finish_s <= end_s)).sum())
        return cls(
            policy,
            setting,
            float((steps.kv_usage * durations_s).sum() / durations_s.sum()),
            int(steps.num_preemptions[counted].sum()) / max(1, num_finished),
            int(steps.num_preemptions[steps.start_s < start_s].sum()),
            stored.summary["throughput"]["output_tokens_per_s"],
            stored.summary["tpot_s"]["p99"],
        )


def past_future(composed: Composed) -> None:
    """Serve a backlog under each admission in each of its settings."""
    tell(known_past_future(composed), composed)


def known_past_future(composed: Composed) -> KnownResult:
    """The result, its runs made unless they are stored."""
    question = composed.question(Question)
    point = point_of(composed, "past_future", {})
    admissions, runs = [], {}
    for policy, of_policy in question.settings.items():
        ((key, values),) = of_policy.items()
        for value in values:
            stored = made(point_of(composed, policy, {f"scheduler.{key}": value}))
            admissions.append(Admission.of(policy, f"{key}={value}", stored, question.warm_up))
            runs[admissions[-1].name] = stored
    chosen = {policy: runs[_typical(admissions, policy).name] for policy in LOOKS}
    pool = point.limits.num_blocks * point.limits.block_size
    return KnownResult(
        name="known_past_future",
        title="Admission by past lengths and the peak to come",
        paper="Gong et al., Past-Future Scheduler for LLM Serving under SLA Guarantees, ASPLOS 2025",
        setting=f"{point.workload.describe()}; a KV cache of {pool:,} tokens; {point.timing}",
        table=[_row(admission) for admission in admissions],
        claims=_claims(admissions),
        chart=_chart(admissions, chosen),
    )


def _typical(admissions: Sequence[Admission], policy: str) -> Admission:
    """Of a policy's settings, the one in the middle of the list."""
    of_policy = [admission for admission in admissions if admission.policy == policy]
    return of_policy[len(of_policy) // 2]


def _row(admission: Admission) -> dict[str, Cell]:
    return {
        "admission": admission.policy,
        "setting": admission.setting,
        "KV in use (%)": 100 * admission.kv_usage,
        "evictions per 100 finished": 100 * admission.evictions,
        "evictions before": admission.evictions_before,
        "output (tokens/s)": admission.output_tokens_per_s,
        "TPOT P99 (ms)": 1e3 * admission.tpot_p99_s,
    }


def _claims(admissions: Sequence[Admission]) -> list[Claim]:
    ours, aggressive = _typical(admissions, "past_future"), _typical(admissions, "aggressive")
    others = [admission for admission in admissions if admission.policy != "past_future"]
    careful = max((a for a in others if a.policy == "conservative"), key=lambda a: (-a.evictions, a.kv_usage))
    as_good = [a for a in others if a.kv_usage >= ours.kv_usage and a.evictions <= ours.evictions]
    return [
        Claim(
            "aggressive admission fills the memory and evicts many",
            f"{_said(aggressive)}; past_future {_said(ours)}",
            aggressive.kv_usage > 0.9 and aggressive.evictions > 2 * ours.evictions,
        ),
        Claim(
            "conservative admission evicts nobody and leaves memory unused",
            _said(careful),
            not careful.evictions and careful.kv_usage < 0.9 * ours.kv_usage,
        ),
        Claim(
            "Past-Future evicts the fewest of all that use as much memory",
            f"{_said(ours)}; as good: {', '.join(f'{a.policy} {_said(a)}' for a in as_good) or 'none'}",
            not as_good,
        ),
    ]


def _said(admission: Admission) -> str:
    return (
        f"at {admission.setting}: {admission.kv_usage:.1%} in use, {100 * admission.evictions:.3g} evictions per 100 "
        "finished"
    )


def _chart(admissions: Sequence[Admission], chosen: Mapping[str, StoredRun]) -> Chart:
    return Chart(
        name="known_past_future",
        title="Memory in use, and evictions for it",
        caption="Left and middle: a marker for each setting of each admission; the lower right is better. Right: the "
        "middle setting of each over time.",
        panels=[
            Panel("Evictions", partial(_draw_settings, admissions, "evictions", 100, "evictions per 100 finished")),
            Panel("What they cost", partial(_draw_settings, admissions, "tpot_p99_s", 1e3, "TPOT P99 (ms)")),
            Panel("Memory over time", partial(_draw_usage, chosen)),
        ],
        legend=LOOKS,
    )


def _draw_settings(admissions: Sequence[Admission], name: str, factor: float, label: str, axes: Axes) -> None:
    for policy, of_policy in groupby(admissions, key=lambda admission: admission.policy):
        found = sorted(of_policy, key=lambda admission: admission.kv_usage)
        look = LOOKS[policy]
        ys = [factor * getattr(admission, name) for admission in found]
        axes.plot([100 * a.kv_usage for a in found], ys, color=look.color, marker=look.marker, linewidth=1)
    axes.set(xlabel="KV cache in use (%)", ylabel=label)
    if name == "evictions":  # from none at all to more than one a request
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(-0.1, 300)
        axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    else:
        axes.set_ylim(bottom=0)


def _draw_usage(chosen: Mapping[str, StoredRun], axes: Axes) -> None:
    for policy, stored in chosen.items():
        steps = stored.steps
        edges = np.linspace(0, steps.end_s[-1], 121)
        counts, _ = np.histogram(steps.start_s, edges)
        sums, _ = np.histogram(steps.start_s, edges, weights=steps.kv_usage)
        means = np.where(counts, sums / np.maximum(counts, 1), np.nan)
        axes.plot((edges[1:] + edges[:-1]) / 2, 100 * means, color=LOOKS[policy].color, linewidth=1.4)
    axes.set(xlabel="time (s)", ylabel="KV cache in use (%)", ylim=(0, 105))
