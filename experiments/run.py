"""One run: a point is simulated, or served by the real engine, and its folder written."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from experiments import decision_log, storage
from experiments.composed import Composed, ctrl_c_uncovered
from experiments.config import Point, read_point
from experiments.conservation import violations
from experiments.recording import Recording
from experiments.step_histogram import step_histogram
from experiments.summary import summarize_pieces
from experiments.trace import told_of_cut
from experiments.workloads import Plan, WorkloadRequest, check_lengths, checks
from schedulers import InputError, Request, RequestRecord, StepRecord
from schedulers.decisions import StepDecisions
from sim.cluster import simulate_cluster
from sim.costs import arrival_s
from sim.tokens import EOS

if TYPE_CHECKING:
    from sim.costs import CostModel

PROGRESS_INTERVAL_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question` of `experiment=run`: see conf/experiment/run.yaml."""

    histogram: bool | None

    def __post_init__(self) -> None:
        if self.histogram is not None:
            checks.flag("question.histogram", self.histogram)


def run(composed: Composed) -> None:
    """`experiment=run`: make one run, say what came of it and where it lies."""
    question, point = composed.question(Question), read_point(composed)
    print(ensure(point))
    if sys.stdout.isatty() if question.histogram is None else question.histogram:
        encoding = sys.stdout.encoding or "utf-8"  # a terminal that has no blocks shows question marks
        print(step_histogram(storage.open_run(point.folder).steps).encode(encoding, "replace").decode(encoding))

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
class Told:
    """What a run says beside its records.

    Attributes:
        num_dropped: requests of the workload that were left out, being too long for the model.
        warnings: what a reader of the results should know, one sentence each.
        decisions: those of every step, if they were to be kept.
    """

    num_dropped: int
    warnings: list[str]
    decisions: list[StepDecisions] | None = None


@dataclass(frozen=True, slots=True)
class Outcome(Told):
    """What a run left, its records held in memory."""

    steps: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)


def measure(point: Point, recording: Recording) -> Told:
    """Make a point, in the world that it asks for; its records go to `recording`.

    Raises:
        TwinserveError: what was wrong with the input, with the policy, or with the engine.
    """
    if point.real is None:
        return record_simulation(point, recording.step, recording.request)
    from experiments.real_run import serve_point

    outcome = serve_point(point)
    recording.take(outcome.steps, outcome.requests)
    return outcome


def simulate_point(point: Point) -> Outcome:
    """Simulate a point as `record_simulation` does, and keep its records in memory."""
    steps: list[StepRecord] = []
    requests: list[RequestRecord] = []
    told = record_simulation(point, steps.append, requests.append)
    return Outcome(told.num_dropped, told.warnings, told.decisions, steps, requests)


def record_simulation(
    point: Point, on_step: Callable[[StepRecord], Any], on_request: Callable[[RequestRecord], Any]
) -> Told:
    """Simulate a point from its first arrival to its last token, handing on every record as it comes.

    Raises:
        TwinserveError: what was wrong with the input, or with the policy.
    """
    drawn = point.workload.requests(point.seed)
    checked = check_lengths(drawn, point.limits.max_model_len, point.workload.too_long)
    plan = Plan.of(checked.requests)
    cost = cast("CostModel", point.cost)
    progress = Progress(point.label, len(checked.requests))

    def arrivals(sent: Iterable[WorkloadRequest]) -> Iterator[tuple[Request, int]]:
        for request in sent:
            sent_on = to_request(request, point.limits.block_size, point.predicted(request))
            yield sent_on, request.num_output_tokens

    def follow_ups(record: RequestRecord) -> list[tuple[Request, int]]:
        return list(arrivals(plan.follow_ups(record.request_id, record.finish_s)))

    def on_finish(record: RequestRecord) -> None:
        on_request(record)
        progress.update()

    decisions: list[StepDecisions] | None = [] if point.keep_decisions else None
    simulate_cluster(
        arrivals(plan.opening),
        [point.scheduler() for _ in range(point.replicas)],
        point.router(),
        cost,
        on_step,
        on_finish,
        None if decisions is None else decisions.append,
        follow_ups,
    )
    return Told(checked.num_dropped, cost.warnings(), decisions)


def write_point(point: Point, outcome: Outcome, folder: Path) -> None:
    """Measure what happened, its records being held in memory, and write it to `folder`."""
    with Recording(folder) as recording:
        recording.take(outcome.steps, outcome.requests)
        write_recorded(point, outcome, recording, folder)


def write_recorded(point: Point, told: Told, recording: Recording, folder: Path) -> None:
    """Measure what was recorded and write it to `folder`, where the recording lies."""
    recording.close()
    figures = summarize_pieces(recording.steps, recording.requests, point.slo, point.replicas)
    summary = {
        **figures,
        "num_dropped": told.num_dropped,
        "workload": point.workload.describe(),
        "cost": point.timing,
        "warnings": [
            *told.warnings,
            *violations(recording.steps, recording.requests, arrival_s(point.cost) if point.cost else 0.0),
            *told_of_cut(figures["steps"], figures["requests"]),
        ],
    }
    files = {} if told.decisions is None else {decision_log.FILE: decision_log.encode(told.decisions)}
    storage.write_recording(folder, point.config_yaml, recording, summary, files)


@ctrl_c_uncovered()
def ensure(point: Point) -> str:
    """Make a point unless its folder holds it already, undamaged; return it in one line.

    Raises:
        TwinserveError: as `measure`; nothing is written then.
    """
    stored = is_stored(point)
    if not stored:
        with Recording(point.folder) as recording:
            write_recorded(point, measure(point, recording), recording, point.folder)
    return describe(point, storage.read_summary(point.folder)) + (" (stored before)" if stored else "")


def is_stored(point: Point) -> bool:
    """Whether the folder of a point holds it already, undamaged, and its decisions if they are to be kept."""
    told = (point.folder / decision_log.FILE).is_file() or not point.keep_decisions
    return told and storage.is_sound(point.folder)


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
        self._done = 0
        self._start = self._said = time.monotonic()

    def update(self) -> None:
        """Another of the requests has ended."""
        self._done += 1
        now = time.monotonic()
        if now - self._said >= PROGRESS_INTERVAL_S:
            self._said = now
            left_s = (now - self._start) * (self._total / self._done - 1)
            print(f"  {self._label}: {self._done:,} of {self._total:,} requests, about {left_s:.0f} s left", flush=True)
