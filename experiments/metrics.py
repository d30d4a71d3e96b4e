"""What a run was like, in numbers. Every metric is defined in the function that computes it.

Latencies are per request and in seconds; they are taken over *completed* requests (not aborted), and the others are
counted. NaN marks a request for which a latency does not exist; in a summary, which is JSON, it is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.columns import Bools, Floats, Ints, RequestColumns, StepColumns
from schedulers.records import RequestRecord, StepRecord
from schedulers.request import SLO

#: The percentiles of every distribution in a summary, linearly interpolated between order statistics.
PERCENTILES = (50, 90, 95, 99)


def ttft_s(requests: RequestColumns) -> Floats:
    """Time to first token: first token minus arrival."""
    return np.where(requests.completed, requests.first_token_s - requests.arrival_s, np.nan)


def e2e_s(requests: RequestColumns) -> Floats:
    """End-to-end latency: finish, which is when the last token was known, minus arrival."""
    return np.where(requests.completed, requests.finish_s - requests.arrival_s, np.nan)


def tpot_s(requests: RequestColumns) -> Floats:
    """Time per output token after the first: (E2E - TTFT) / (output tokens - 1); a single token has none."""
    gaps = np.where(requests.num_output_tokens > 1, requests.num_output_tokens - 1.0, np.nan)
    return (e2e_s(requests) - ttft_s(requests)) / gaps


def itl_s(requests: RequestColumns) -> Floats:
    """Inter-token latencies: every gap between consecutive tokens of a request, of all requests in one flat array."""
    if len(requests.token_times_s) < 2:
        return np.empty(0)
    kept = np.repeat(requests.completed, np.diff(requests.token_offsets))[1:]
    borders = requests.token_offsets[1:-1]
    kept[borders[(borders > 0) & (borders <= len(kept))] - 1] = False  # from one request's last to the next one's first
    return np.diff(requests.token_times_s)[kept]


def queueing_s(requests: RequestColumns) -> Floats:
    """Queueing time: first scheduled minus arrival. Waiting after a preemption is not in it."""
    return np.where(requests.completed, requests.first_scheduled_s - requests.arrival_s, np.nan)


def makespan_s(requests: RequestColumns) -> float:
    """From the first arrival to the last finish; the drain after the last arrival is part of it."""
    return float(requests.finish_s.max() - requests.arrival_s.min()) if len(requests) else 0.0


def meets_slo(requests: RequestColumns, slo: SLO | None) -> Bools | None:
    """Which requests met every target they have: their own, or else the run's. None when there is no target at all.

    An aborted request meets nothing; the TPOT target does not bind a request with a single token.
    """
    default = slo or SLO()
    ttft_target = _with_default(requests.slo_ttft_s, default.ttft_s)
    tpot_target = _with_default(requests.slo_tpot_s, default.tpot_s)
    if np.isnan(ttft_target).all() and np.isnan(tpot_target).all():
        return None
    missed = (ttft_s(requests) > ttft_target) | (tpot_s(requests) > tpot_target)  # a comparison with NaN is False
    return requests.completed & ~missed


def busy_mean(steps: StepColumns, values: Floats | Ints) -> float | None:
    """The time-weighted mean over steps: each counts as long as it took. Time without a step does not count."""
    durations = steps.end_s - steps.start_s
    busy = durations.sum()
    return float((values * durations).sum() / busy) if busy > 0 else None


def distribution(values: Floats) -> dict[str, float | int | None]:
    """Count, mean, percentiles and maximum of the values that exist, each None when none does."""
    values = values[~np.isnan(values)]
    names = [f"p{percentile}" for percentile in PERCENTILES]
    if not len(values):
        return {"count": 0, "mean": None, **dict.fromkeys(names), "max": None}
    percentiles = np.percentile(values, PERCENTILES).tolist()
    return {
        "count": len(values),
        "mean": float(values.mean()),
        **dict(zip(names, percentiles, strict=True)),
        "max": float(values.max()),
    }


def summarize(
    steps: StepColumns | Sequence[StepRecord], requests: RequestColumns | Sequence[RequestRecord], slo: SLO | None
) -> dict[str, Any]:
    """A run's figures, ready for JSON; keys end in their unit.

    Throughput is what completed requests brought (their prompts and outputs) over the makespan. Goodput is the share
    of all requests that met their SLO, and how many such requests there were a second (DistServe, OSDI 2024).
    `batch_size` is how many requests a step computed, `step_tokens` how many tokens; `kv_usage`, `running` and
    `waiting` are weighted by time. `by_priority` is there when requests have more than one priority: see `by_priority`.
    """
    steps, requests = StepColumns.of(steps), RequestColumns.of(requests)
    completed, met = requests.completed, meets_slo(requests, slo)
    makespan = makespan_s(requests)
    output_tokens = int(requests.num_output_tokens[completed].sum())
    prompt_tokens = int(requests.num_prompt_tokens[completed].sum())
    scheduled = ~np.isnan(requests.first_scheduled_s)
    own_targets = ~np.isnan(requests.slo_ttft_s) | ~np.isnan(requests.slo_tpot_s)

    def rate(amount: float) -> float | None:
        return amount / makespan if makespan > 0 else None

    figures = {
        "requests": len(requests),
        "completed": int(completed.sum()),
        "aborted": requests.finish_reason.count("abort"),
        "makespan_s": makespan,
        "ttft_s": distribution(ttft_s(requests)),
        "tpot_s": distribution(tpot_s(requests)),
        "itl_s": distribution(itl_s(requests)),
        "e2e_s": distribution(e2e_s(requests)),
        "queueing_s": distribution(queueing_s(requests)),
        "throughput": {
            "requests_per_s": rate(int(completed.sum())),
            "output_tokens_per_s": rate(output_tokens),
            "total_tokens_per_s": rate(prompt_tokens + output_tokens),
        },
        "goodput": {
            "share": None if met is None or not len(met) else float(met.mean()),
            "requests_per_s": None if met is None else rate(int(met.sum())),
            "slo": {"ttft_s": slo.ttft_s if slo else None, "tpot_s": slo.tpot_s if slo else None},
            "requests_with_own_targets": int(own_targets.sum()),
        },
        "steps": len(steps),
        "busy_share": rate(float((steps.end_s - steps.start_s).sum())),
        "step_tokens": {"mean": _mean(steps.num_prefill_tokens + steps.num_decode_tokens)},
        "batch_size": {"mean": _mean(steps.num_prefills + steps.num_decode_tokens)},
        "kv_usage": {"mean": busy_mean(steps, steps.kv_usage), "max": _max(steps.kv_usage)},
        "running": {"mean": busy_mean(steps, steps.num_running), "max": _max(steps.num_running)},
        "waiting": {"mean": busy_mean(steps, steps.num_waiting), "max": _max(steps.num_waiting)},
        "preemptions": int(steps.num_preemptions.sum()),
        "prefix_cache_hit_share": _share(requests.num_cached_tokens[scheduled], requests.num_prompt_tokens[scheduled]),
    }
    classes = by_priority(requests, slo)
    return {**figures, "by_priority": classes} if len(classes) > 1 else figures


def by_priority(requests: RequestColumns, slo: SLO | None) -> dict[str, dict[str, Any]]:
    """What the requests of each priority saw, most urgent (lowest) first, in the shape of the summary of all.

    The keys are priorities in decimal, since JSON has no others.
    """
    ttft, tpot, met = ttft_s(requests), tpot_s(requests), meets_slo(requests, slo)

    def figures(chosen: Bools) -> dict[str, Any]:
        return {
            "requests": int(chosen.sum()),
            "ttft_s": distribution(ttft[chosen]),
            "tpot_s": distribution(tpot[chosen]),
            "goodput": {"share": None if met is None else float(met[chosen].mean())},
        }

    return {str(priority): figures(requests.priority == priority) for priority in np.unique(requests.priority)}


def histogram_edges(largest: int) -> Ints:
    """Lower edges of the bins for tokens per step, and the last bin's upper edge: 0, 1, 2, 3, 4, 6, 8, 12, 16, ...

    Two bins an octave, and the same whatever the data, so that histograms of different runs can be added and compared.
    """
    edges = [0, 1, 2, 3]
    while edges[-1] <= largest:
        edges.append(2 * edges[-2])
    return np.array(edges, dtype=np.int64)


def token_histogram(tokens: Ints) -> tuple[Ints, Ints]:
    """(edges, counts): how many steps had a number of tokens in [edges[i], edges[i + 1])."""
    edges = histogram_edges(int(tokens.max(initial=0)))
    bins = np.searchsorted(edges, tokens, side="right") - 1
    return edges, np.bincount(bins, minlength=len(edges) - 1)


def _with_default(targets: Floats, default: float | None) -> Floats:
    return targets if default is None else np.where(np.isnan(targets), default, targets)


def _mean(values: Ints) -> float | None:
    return float(values.mean()) if len(values) else None


def _max(values: Floats | Ints) -> float | None:
    return float(values.max()) if len(values) else None


def _share(part: Ints, whole: Ints) -> float | None:
    return float(part.sum() / whole.sum()) if whole.sum() else None
