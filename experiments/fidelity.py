"""`experiment=fidelity`: a real vLLM run beside its simulation, latency by latency and request by request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from experiments import storage
from experiments.columns import Floats, Ints
from experiments.composed import CONF, Composed
from experiments.config import Point, read_point
from experiments.run import to_request
from experiments.vllm_run import VLLMRun
from experiments.workloads import checks
from schedulers import InputError, RequestRecord, StepRecord
from sim.engine import simulate
from sim.overlapped import simulate_overlapped

if TYPE_CHECKING:
    from sim.costs import CostModel

#: What is told of each latency, over the requests that have it.
STATISTICS: Mapping[str, Callable[[Floats], Any]] = {
    "mean": np.mean,
    "P50": lambda values: np.percentile(values, 50),
    "P90": lambda values: np.percentile(values, 90),
    "P99": lambda values: np.percentile(values, 99),
}


@dataclass(frozen=True)
class Question:
    """The node `question`; see conf/experiment/fidelity.yaml."""

    run: str
    prompts: str | None = None
    async_scheduling: bool | None = None

    def __post_init__(self) -> None:
        checks.text("question.run", self.run)
        if self.prompts is not None:
            checks.text("question.prompts", self.prompts)
        if self.async_scheduling is not None:
            checks.flag("question.async_scheduling", self.async_scheduling)


@dataclass(frozen=True)
class Latencies:
    """What each request saw, in the order of the measured run; seconds, NaN where a request has no such latency.

    All of it is on the engine core's clock, from the moment in which the core took the request out of its mailbox
    between two steps: what vLLM's own TTFT and the authors' figures start from. What lies before (front end, and the
    step then in flight) is in neither side's figures.
    """

    queued_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    num_output_tokens: Ints

    @property
    def by_name(self) -> dict[str, Floats]:
        """TTFT, TPOT (over the tokens after the first) and E2E."""
        gaps = np.where(self.num_output_tokens > 1, self.num_output_tokens - 1.0, np.nan)
        return {
            "TTFT": self.first_token_s - self.queued_s,
            "TPOT": (self.last_token_s - self.first_token_s) / gaps,
            "E2E": self.last_token_s - self.queued_s,
        }

    @property
    def makespan_s(self) -> float:
        """From the first request taken in to the last token."""
        return float(self.last_token_s.max() - self.queued_s.min())

    @classmethod
    def measured(cls, run: VLLMRun) -> Latencies:
        """As vLLM told them."""
        return cls(run.queued_s, run.first_token_s, run.last_token_s, run.num_output_tokens)

    @classmethod
    def simulated(cls, ids: Sequence[str], steps: Sequence[StepRecord], requests: Sequence[RequestRecord]) -> Latencies:
        """Of a simulation, whose engine takes requests in whenever a step starts."""
        by_id = {request.request_id: request for request in requests}
        ordered = [by_id[request_id] for request_id in ids]
        starts = np.array([step.start_s for step in steps])
        arrivals = np.array([request.arrival_s for request in ordered])
        return cls(
            starts[np.searchsorted(starts, arrivals)],
            np.array([request.token_times_s[0] for request in ordered]),
            np.array([request.token_times_s[-1] for request in ordered]),
            np.array([request.num_output_tokens for request in ordered]),
        )


@dataclass(frozen=True)
class Comparison:
    """A measured run and its simulation.

    Attributes:
        ahead: the simulated engine decided each step while the one before ran.
        steps: of the simulation.
        warnings: what a reader should know, one sentence each.
    """

    run: VLLMRun
    point: Point
    ahead: bool
    measured: Latencies
    simulated: Latencies
    steps: Sequence[StepRecord]
    warnings: Sequence[str]

    @property
    def name(self) -> str:
        """Device and model of the run."""
        return f"{self.run.device or 'run'}-{self.run.model}"

    def figures(self) -> dict[str, Any]:
        """All figures, ready for JSON: seconds, and errors as shares of what was measured."""
        ours = self.simulated.by_name
        figures: dict[str, Any] = {}
        for name, theirs in self.measured.by_name.items():
            kept = ~np.isnan(theirs)
            if kept.any():  # no request has a TPOT if all have a single token
                figures[name] = _figures(theirs[kept], ours[name][kept])
        figures["makespan"] = _beside(self.measured.makespan_s, self.simulated.makespan_s)
        return figures


def run_fidelity(composed: Composed) -> None:
    """Simulate what a real run served, print both, and store figures, requests and charts."""
    comparison = compare(composed)
    folder = Path(composed.config.results) / "fidelity" / comparison.name
    print(table(comparison))
    storage.write_files(folder, _files(comparison))

    from experiments.report.fidelity import write_page

    print(f"results: {write_page(folder, comparison)}")


def compare(composed: Composed) -> Comparison:
    """Read a real run and simulate it with its own limits.

    Model, device and limits are the run's, unless the command line gives others.

    Raises:
        InputError: the run cannot be read or simulated; the message names what is wrong.
    """
    question = composed.question(Question)
    run = VLLMRun.read(Path(question.run))
    point = read_point(_as_run(composed, run))
    prompts = Path(question.prompts) if question.prompts is not None else run.prompts_file()
    ahead = run.async_scheduling if question.async_scheduling is None else question.async_scheduling
    if point.cost is None:
        raise InputError("mode=real: a measured run is compared with a simulation; leave mode=sim")
    if point.replicas > 1:
        raise InputError(f"engine.replicas={point.replicas}: a measured run is of one engine; leave engine.replicas=1")

    arrivals = [
        (to_request(request, point.limits.block_size, point.predicted(request)), request.num_output_tokens)
        for request in run.requests(prompts)
    ]
    steps: list[StepRecord] = []
    requests: list[RequestRecord] = []
    kind = simulate_overlapped if ahead else simulate
    kind(arrivals, point.scheduler(), cast("CostModel", point.cost), steps.append, requests.append)

    warnings = list(point.cost.warnings())
    if prompts is None and point.limits.prefix_caching:
        warnings.append(
            "The run's prompts were not found, so that none shares a prefix with another here: question.prompts=FILE."
        )
    if run.settings()["engine.num_blocks"] is None and "engine.num_blocks" not in composed.varied:
        warnings.append(
            f"The run does not tell its KV blocks; {point.limits.num_blocks:,} were counted from the device's memory, "
            f"an upper bound, and at most {max(step.kv_usage for step in steps):.0%} of them were used."
        )
    simulated = Latencies.simulated(run.ids, steps, requests)
    return Comparison(run, point, ahead, Latencies.measured(run), simulated, steps, warnings)


def table(comparison: Comparison) -> str:
    """Measured, simulated and error, in milliseconds, and how far the two agree request by request."""
    figures = comparison.figures()
    latencies = [name for name in figures if name != "makespan"]
    overlap = "steps decided ahead" if comparison.ahead else "steps decided one after the other"
    limits = comparison.point.limits
    served = f"{len(comparison.run.ids):,} requests, {limits.max_num_seqs} slots, {limits.token_budget:,} tokens a step"
    lines = [
        f"{comparison.name}: {served}, {limits.num_blocks:,} KV blocks, {overlap}",
        comparison.point.timing,
        "",
        f"{'ms':<14}{'measured':>12}{'simulated':>12}{'error':>10}",
    ]

    def row(name: str, pair: Mapping[str, float]) -> str:
        return f"{name:<14}{1e3 * pair['measured']:>12,.1f}{1e3 * pair['simulated']:>12,.1f}{pair['error']:>+10.2%}"

    for name in latencies:
        lines += [row(f"{name} {statistic}", figures[name][statistic]) for statistic in STATISTICS]
    lines += [row("makespan", figures["makespan"]), "", "request by request: Pearson and rank correlation"]
    lines += [
        f"{name:<14}{_or_dash(figures[name]['pearson']):>12}{_or_dash(figures[name]['spearman']):>12}"
        for name in latencies
    ]
    lines += [f"mind: {warning}" for warning in comparison.warnings]
    return "\n".join(lines)


def _as_run(composed: Composed, run: VLLMRun) -> Composed:
    """The config with the run's model, device and limits in place of those that the command line does not give."""
    for group, name in (("model", run.model), ("device", run.device)):
        if group in composed.varied or name is None:
            continue
        if not (CONF / group / f"{name}.yaml").is_file():
            raise InputError(
                f"the run is of {group} {name!r}, of which conf/{group} has no file; give one: {group}=NAME"
            )
        composed = composed.with_choice(group, name)
    given = {key: value for key, value in run.settings().items() if key not in composed.varied}
    return composed.with_values(given)


def _files(comparison: Comparison) -> dict[str, bytes]:
    point, run = comparison.point, comparison.run
    sides = {"measured": comparison.measured.by_name, "simulated": comparison.simulated.by_name}
    columns = {
        f"{side}_{name.lower()}_s": values for side, by_name in sides.items() for name, values in by_name.items()
    }
    rows = ["request_id,prompt_tokens,output_tokens," + ",".join(columns)]
    for i, request_id in enumerate(run.ids):
        values = ",".join("" if np.isnan(column[i]) else f"{column[i]:.6f}" for column in columns.values())
        rows.append(f"{request_id},{run.num_prompt_tokens[i]},{run.num_output_tokens[i]},{values}")
    summary = {
        "model": run.model,
        "device": run.device,
        "policy": point.policy.__name__,
        "limits": {name: getattr(point.limits, name) for name in point.limits.__slots__},
        "async_scheduling": comparison.ahead,
        "cost": point.timing,
        "steps": len(comparison.steps),
        "preemptions": sum(step.num_preemptions for step in comparison.steps),
        "figures": comparison.figures(),
        "warnings": list(comparison.warnings),
    }
    return {
        "requests.csv": ("\n".join(rows) + "\n").encode(),
        "fidelity.json": (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode(),
    }


def _figures(measured: Floats, simulated: Floats) -> dict[str, Any]:
    statistics = {name: _beside(float(of(measured)), float(of(simulated))) for name, of in STATISTICS.items()}
    correlations = {
        "pearson": _pearson(measured, simulated),
        "spearman": _pearson(_ranks(measured), _ranks(simulated)),
    }
    return {**statistics, **correlations}


def _beside(measured: float, simulated: float) -> dict[str, float]:
    return {"measured": measured, "simulated": simulated, "error": simulated / measured - 1}


def _pearson(x: Floats, y: Floats) -> float | None:
    """The correlation; None where one side does not vary."""
    x, y = x - x.mean(), y - y.mean()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norm if norm > 0 else None


def _ranks(values: Floats) -> Floats:
    """Each value's place, equal ones sharing the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts + 1) / 2)[group]
    return ranks


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
