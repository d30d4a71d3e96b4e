"""A run's figures in one JSON object, gathered piece by piece, so that a long run need not be held in memory.

The metrics are defined in `experiments.metrics`; what is said of many values, in `experiments.distribution`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments import fairness, metrics
from experiments.columns import Bools, Floats, Ints, RequestColumns, StepColumns
from experiments.distribution import Distribution
from schedulers.records import RequestRecord, StepRecord
from schedulers.request import SLO

LATENCIES = {
    "ttft_s": metrics.ttft_s,
    "tpot_s": metrics.tpot_s,
    "itl_s": metrics.itl_s,
    "e2e_s": metrics.e2e_s,
    "queueing_s": metrics.queueing_s,
}


def summarize(
    steps: StepColumns | Sequence[StepRecord],
    requests: RequestColumns | Sequence[RequestRecord],
    slo: SLO | None,
    replicas: int = 1,
) -> dict[str, Any]:
    """The figures of a run whose records are at hand: `summarize_pieces` of one piece."""
    return summarize_pieces([StepColumns.of(steps)], [RequestColumns.of(requests)], slo, replicas)


def summarize_pieces(
    steps: Iterable[StepColumns], requests: Iterable[RequestColumns], slo: SLO | None, replicas: int = 1
) -> dict[str, Any]:
    """A run's figures, ready for JSON; keys end in their unit.

    Throughput is what completed requests brought (their prompts and outputs) over the makespan, which lasts from the
    first arrival to the last finish, so that the drain after the last arrival is part of it. Goodput is the share of
    all requests that met their SLO, and how many such requests there were a second (DistServe, OSDI 2024).
    `batch_size` is how many requests a step computed, `step_tokens` how many tokens; `kv_usage`, `running` and
    `waiting` are weighted by the time of steps; all of these are of one engine, over all engines. `busy_share` is the
    mean over the engines. `by_priority` is there when requests have more than one priority, `by_replica` when there are
    several engines, `fairness` (see `fairness.summarize`) when requests are of several clients.

    Args:
        steps: pieces of the run; walked once.
        requests: pieces of the run; walked once, and for more latencies than can be held a few times.
        slo: targets of requests that have none of their own.
        replicas: engines, idle ones included.
    """
    done = _Steps(replicas)
    for piece in steps:
        done.add(piece)
    told = _Requests()
    priorities: dict[int, _Class] = {}
    served = [_Served() for _ in range(replicas)]
    first = True
    while first or not told.are_known or not all(kind.are_known for kind in priorities.values()):
        for columns in requests:
            met = metrics.meets_targets(columns, slo)
            told.add_latencies(columns)
            for priority in np.unique(columns.priority).tolist():
                priorities.setdefault(priority, _Class()).add_latencies(columns, columns.priority == priority)
            if first:
                told.add(columns, met, metrics.has_targets(columns, slo))
                for priority in np.unique(columns.priority).tolist():
                    priorities[priority].add(met[columns.priority == priority])
                for replica, engine in enumerate(served):
                    engine.add(columns, columns.replica == replica)
        told.end_pass()
        for kind in priorities.values():
            kind.end_pass()
        first = False

    figures = {**told.figures(slo), **done.figures(told.makespan_s), "prefix_cache_hit_share": told.hit_share}
    if len(priorities) > 1:
        targets = told.num_with_target > 0
        figures["by_priority"] = {str(name): priorities[name].figures(targets) for name in sorted(priorities)}
    if clients := fairness.summarize(requests, told.clients, told.span_s):
        figures["fairness"] = clients
    if replicas > 1:
        figures["by_replica"] = {
            str(replica): {**engine.figures(told.makespan_s), **done.of_replica(replica, told.makespan_s)}
            for replica, engine in enumerate(served)
        }
    return figures


class _Requests:
    """All requests of a run."""

    def __init__(self) -> None:
        self._latencies = {name: Distribution() for name in LATENCIES}
        self._num = self._num_completed = self._num_aborted = self._num_met = self._num_with_own = 0
        self.num_with_target = 0
        self._prompt_tokens = self._output_tokens = self._looked_up = self._cached = 0
        self.span_s = (np.inf, -np.inf)
        #: How many requests each has.
        self.clients = Counter[str]()

    @property
    def are_known(self) -> bool:
        return all(latency.is_known for latency in self._latencies.values())

    @property
    def makespan_s(self) -> float:
        return float(self.span_s[1] - self.span_s[0]) if self._num else 0.0

    @property
    def hit_share(self) -> float | None:
        return self._cached / self._looked_up if self._looked_up else None

    def add_latencies(self, columns: RequestColumns) -> None:
        for name, latency in self._latencies.items():
            if not latency.is_known:
                latency.add(LATENCIES[name](columns))

    def end_pass(self) -> None:
        for latency in self._latencies.values():
            if not latency.is_known:
                latency.end_pass()

    def add(self, columns: RequestColumns, met: Bools, targets: Bools) -> None:
        completed, scheduled = columns.completed, ~np.isnan(columns.first_scheduled_s)
        self._num += len(columns)
        self._num_completed += int(completed.sum())
        self._num_aborted += columns.finish_reason.count("abort")
        self._num_met += int(met.sum())
        self.num_with_target += int(targets.sum())
        self._num_with_own += int((~np.isnan(columns.slo_ttft_s) | ~np.isnan(columns.slo_tpot_s)).sum())
        self._prompt_tokens += int(columns.num_prompt_tokens[completed].sum())
        self._output_tokens += int(columns.num_output_tokens[completed].sum())
        self._looked_up += int(columns.num_prompt_tokens[scheduled].sum())
        self._cached += int(columns.num_cached_tokens[scheduled].sum())
        first_s, last_s = columns.arrival_s.min(initial=np.inf), columns.finish_s.max(initial=-np.inf)
        self.span_s = (min(self.span_s[0], first_s), max(self.span_s[1], last_s))
        self.clients.update(columns.client_id)

    def figures(self, slo: SLO | None) -> dict[str, Any]:
        makespan, aims = self.makespan_s, self.num_with_target > 0
        return {
            "requests": self._num,
            "completed": self._num_completed,
            "aborted": self._num_aborted,
            "makespan_s": makespan,
            **{name: latency.figures() for name, latency in self._latencies.items()},
            "throughput": {
                "requests_per_s": _over(self._num_completed, makespan),
                "output_tokens_per_s": _over(self._output_tokens, makespan),
                "total_tokens_per_s": _over(self._prompt_tokens + self._output_tokens, makespan),
            },
            "goodput": {
                "share": self._num_met / self._num if aims else None,
                "requests_per_s": _over(self._num_met, makespan) if aims else None,
                "slo": {"ttft_s": slo.ttft_s if slo else None, "tpot_s": slo.tpot_s if slo else None},
                "requests_with_own_targets": self._num_with_own,
            },
        }


class _Class:
    """The requests of one priority, in the shape of the summary of all."""

    def __init__(self) -> None:
        self._latencies = {"ttft_s": Distribution(), "tpot_s": Distribution()}
        self._num = self._num_met = 0

    @property
    def are_known(self) -> bool:
        return all(latency.is_known for latency in self._latencies.values())

    def add_latencies(self, columns: RequestColumns, mine: Bools) -> None:
        for name, latency in self._latencies.items():
            if not latency.is_known:
                latency.add(LATENCIES[name](columns)[mine])

    def end_pass(self) -> None:
        for latency in self._latencies.values():
            if not latency.is_known:
                latency.end_pass()

    def add(self, met: Bools) -> None:
        self._num += len(met)
        self._num_met += int(met.sum())

    def figures(self, targets: bool) -> dict[str, Any]:
        return {
            "requests": self._num,
            **{name: latency.figures() for name, latency in self._latencies.items()},
            "goodput": {"share": self._num_met / self._num if targets else None},
        }


class _Served:
    """What one engine served."""

    def __init__(self) -> None:
        self._num = self._output_tokens = self._looked_up = self._cached = 0

    def add(self, columns: RequestColumns, mine: Bools) -> None:
        scheduled = mine & ~np.isnan(columns.first_scheduled_s)
        self._num += int(mine.sum())
        self._output_tokens += int(columns.num_output_tokens[mine & columns.completed].sum())
        self._looked_up += int(columns.num_prompt_tokens[scheduled].sum())
        self._cached += int(columns.num_cached_tokens[scheduled].sum())

    def figures(self, makespan_s: float) -> dict[str, Any]:
        return {
            "requests": self._num,
            "output_tokens_per_s": _over(self._output_tokens, makespan_s),
            "prefix_cache_hit_share": self._cached / self._looked_up if self._looked_up else None,
        }


class _Steps:
    """All steps of a run. Sums are by engine, each an array with an entry an engine."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._num, self._busy_s, self._tokens, self._sequences, self._preemptions = np.zeros((5, replicas))
        #: Of kv_usage, num_running and num_waiting: integrals over the time of steps, and maxima.
        self._integrals = {name: np.zeros(replicas) for name in ("kv_usage", "num_running", "num_waiting")}
        self._maxima = {name: np.zeros(replicas) for name in self._integrals}

    def add(self, steps: StepColumns) -> None:
        durations = steps.end_s - steps.start_s

        def by_replica(values: Floats | Ints) -> Floats:
            return np.bincount(steps.replica, weights=values, minlength=self._replicas)

        self._num += np.bincount(steps.replica, minlength=self._replicas)
        self._busy_s += by_replica(durations)
        self._tokens += by_replica(steps.num_prefill_tokens + steps.num_decode_tokens)
        self._sequences += by_replica(steps.num_prefills + steps.num_decode_tokens)
        self._preemptions += by_replica(steps.num_preemptions)
        for name in self._integrals:
            values = getattr(steps, name)
            self._integrals[name] += by_replica(values * durations)
            np.maximum.at(self._maxima[name], steps.replica, values)

    def figures(self, makespan_s: float) -> dict[str, Any]:
        steps = int(self._num.sum())
        return {
            "steps": steps,
            "busy_share": _over(float(self._busy_s.sum()), makespan_s * self._replicas),
            "step_tokens": {"mean": _over(float(self._tokens.sum()), steps)},
            "batch_size": {"mean": _over(float(self._sequences.sum()), steps)},
            **{name.removeprefix("num_"): self._usage(name, slice(None)) for name in self._integrals},
            "preemptions": int(self._preemptions.sum()),
        }

    def of_replica(self, replica: int, makespan_s: float) -> dict[str, Any]:
        return {
            "steps": int(self._num[replica]),
            "busy_share": _over(float(self._busy_s[replica]), makespan_s),
            "batch_size": {"mean": _over(float(self._sequences[replica]), int(self._num[replica]))},
            **{name.removeprefix("num_"): self._usage(name, slice(replica, replica + 1)) for name in self._integrals},
            "preemptions": int(self._preemptions[replica]),
        }

    def _usage(self, name: str, chosen: slice) -> dict[str, float | None]:
        there = self._num[chosen].sum() > 0
        mean = _over(float(self._integrals[name][chosen].sum()), float(self._busy_s[chosen].sum()))
        return {"mean": mean, "max": float(self._maxima[name][chosen].max()) if there else None}


def _over(amount: float, whole: float) -> float | None:
    return amount / whole if whole > 0 else None
