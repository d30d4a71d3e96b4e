"""One run: a point is simulated, or served by the real engine, and its folder written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from experiments import decision_log, metrics, storage
from experiments.config import Composed, Point, read_point
from experiments.workloads import Plan, WorkloadRequest, check_lengths, checks
from schedulers import InputError, Request, RequestRecord, StepRecord
from schedulers.decisions import StepDecisions
from sim.engine import simulate
from sim.tokens import EOS

if TYPE_CHECKING:
    from sim.costs import CostModel

PROGRESS_INTERVAL_S = 5.0


def run(composed: Composed) -> None:
    """`experiment=run`: make one run and say where it lies."""
    point = read_point(composed)
    print(ensure(point))

    from experiments.report import write_run_page

    print(f"results: {write_run_page(point.folder)}")


def plot(composed: Composed) -> None:
    """`experiment=plot`: redraw a stored run or sweep."""
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(composed.config, "path"):
        raise InputError("path has no value yet; give the folder of a run or a sweep: path=FOLDER")
    checks.text("path", composed.config.path)

    from experiments.report import redraw

    print(f"drawn again: {redraw(Path(composed.config.path))}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left.

    Attributes:
        num_dropped: requests of the workload that were left out, being too long for the model.
        warnings: what a reader of the results should know, one sentence each.
        decisions: those of every step, if they were to be kept.
    """

    steps: list[StepRecord]
    requests: list[RequestRecord]
    num_dropped: int
    warnings: list[str]
    decisions: list[StepDecisions] | None = None


def measure(point: Point) -> Outcome:
    """Make a point, in the world that it asks for.

    Raises:
        TwinserveError: what was wrong with the input, with the policy, or with the engine.
    """
    if point.real is None:
        return simulate_point(point)
    from experiments.real_run import serve_point

    return serve_point(point)


def simulate_point(point: Point) -> Outcome:
    """Simulate a point from its first arrival to its last token.

    Raises:
        TwinserveError: what was wrong with the input, or with the policy.
    """
    drawn = point.workload.requests(point.seed)
    checked = check_lengths(drawn, point.limits.max_model_len, point.workload.too_long)
    plan = Plan.of(checked.requests)
    cost = cast("CostModel", point.cost)
    steps: list[StepRecord] = []
    requests: list[RequestRecord] = []
    progress = Progress(point.label, len(checked.requests))

    def arrivals(sent: Iterable[WorkloadRequest]) -> Iterator[tuple[Request, int]]:
        for request in sent:
            prediction = point.predictor.predict(request, point.seed)
            yield to_request(request, point.limits.block_size, prediction), request.num_output_tokens

    def follow_ups(record: RequestRecord) -> list[tuple[Request, int]]:
        return list(arrivals(plan.follow_ups(record.request_id, record.finish_s)))

    def on_finish(record: RequestRecord) -> None:
        requests.append(record)
        progress.update(len(requests))

    decisions: list[StepDecisions] | None = [] if point.keep_decisions else None
    on_decisions = None if decisions is None else decisions.append
    simulate(arrivals(plan.opening), point.scheduler(), cost, steps.append, on_finish, on_decisions, follow_ups)
    return Outcome(steps, requests, checked.num_dropped, cost.warnings(), decisions)


def write_point(point: Point, outcome: Outcome, folder: Path) -> None:
    """Measure what happened and write it to `folder`."""
    summary = {
        **metrics.summarize(outcome.steps, outcome.requests, point.slo),
        "num_dropped": outcome.num_dropped,
        "workload": point.workload.describe(),
        "cost": point.timing,
        "warnings": outcome.warnings,
    }
    files = {} if outcome.decisions is None else {decision_log.FILE: decision_log.encode(outcome.decisions)}
    storage.write_run(folder, point.config_yaml, outcome.steps, outcome.requests, summary, files)


def ensure(point: Point) -> str:
    """Make a point unless its folder holds it already, undamaged; return it in one line.

    Raises:
        TwinserveError: as `measure`; nothing is written then.
    """
    stored = storage.is_sound(point.folder)
    if not stored:
        write_point(point, measure(point), point.folder)
    return describe(point, storage.read_summary(point.folder)) + (" (stored before)" if stored else "")


def to_request(request: WorkloadRequest, block_size: int, predicted_output_tokens: float | None = None) -> Request:
    """What the scheduler may know of a workload's request: everything but how long its output will be.

    It may know what a predictor says about that, if one was asked.
    """
    return Request(
        request.request_id,
        request.arrival_s,
        num_prompt_tokens=request.num_prompt_tokens,
        prompt_block_hashes=request.block_hashes(block_size),
        content_id=request.content_id,
        max_tokens=request.max_tokens,
        eos_token_id=EOS,
        priority=request.priority,
        client_id=request.client_id,
        session_id=request.session_id,
        slo=request.slo,
        predicted_output_tokens=predicted_output_tokens,
    )


def describe(point: Point, summary: Mapping[str, Any]) -> str:
    """A finished point in one line."""
    ttft, tpot = summary["ttft_s"], summary["tpot_s"]

    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value * 1e3:,.0f} ms"

    return (
        f"{point.name}: {summary['completed']:,} requests, TTFT P50 {ms(ttft['p50'])} P99 {ms(ttft['p99'])}, "
        f"TPOT P50 {ms(tpot['p50'])} P99 {ms(tpot['p99'])}"
    )


class Progress:
    """Says every few seconds of wall time how far a long run has come."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._start = self._said = time.monotonic()

    def update(self, done: int) -> None:
        """`done` of the requests have ended."""
        now = time.monotonic()
        if now - self._said >= PROGRESS_INTERVAL_S:
            self._said = now
            left_s = (now - self._start) * (self._total / done - 1)
            print(f"  {self._label}: {done:,} of {self._total:,} requests, about {left_s:.0f} s left", flush=True)
