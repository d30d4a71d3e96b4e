"""`experiment=gantt`: some steps of a run, a row a request: who computed how much when, and who had to wait."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from experiments import decision_log, storage
from experiments.composed import Composed
from experiments.workloads import checks
from schedulers import InputError
from schedulers.decisions import Arrival, StepDecisions

#: Steps and requests that a chart has room for.
MAX_STEPS, MAX_ROWS = 200, 100
#: Steps that are drawn when nobody says how many.
USUAL_STEPS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/gantt.yaml for each key."""

    first_step: int
    last_step: int | None

    def __post_init__(self) -> None:
        checks.count("question.first_step", self.first_step)
        if self.last_step is None:
            return
        checks.count("question.last_step", self.last_step)
        if self.last_step < self.first_step:
            raise InputError(
                f"question.last_step={self.last_step}: it must be at least question.first_step={self.first_step}"
            )
        if self.last_step - self.first_step >= MAX_STEPS:
            raise InputError(
                f"question.last_step={self.last_step}: {MAX_STEPS} steps can be read at most, from "
                f"question.first_step={self.first_step} to {self.first_step + MAX_STEPS - 1}"
            )


@dataclass(slots=True)
class Row:
    """One request in the steps that are drawn; each list holds numbers of steps.

    Attributes:
        prefills: tokens of the prompt (or of recomputation) that each step computed.
        decodes: steps that computed the one token it had produced last.
        preempted: steps in which it lost its place.
        held: steps in which it had a place, and nothing was computed for it.
        waited: steps in which it had arrived and had no place.
    """

    request_id: str
    prefills: dict[int, int] = field(default_factory=dict)
    decodes: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Progress:
    num_prompt_tokens: int
    num_tokens: int
    num_computed_tokens: int = 0
    has_place: bool = False


def gantt(composed: Composed) -> None:
    """`experiment=gantt path=FOLDER`: draw the steps, and say where the chart lies."""
    from omegaconf import OmegaConf

    from experiments.report.charts import chart_files
    from experiments.report.steps import gantt_chart

    question = composed.question(Question)
    if OmegaConf.is_missing(composed.config, "path"):
        raise InputError("path has no value yet; give the folder of a run with decisions: path=FOLDER")
    checks.text("path", composed.config.path)
    folder = Path(composed.config.path)
    steps = decision_log.read(folder)
    first = question.first_step
    last = min(question.last_step or first + USUAL_STEPS - 1, steps[-1].step)
    if first > last:
        raise InputError(f"question.first_step={first}: the run has {steps[-1].step:,} steps")
    rows = rows_of(steps, first, last)
    files = chart_files(gantt_chart(rows[:MAX_ROWS], first, last, num_left_out=len(rows[MAX_ROWS:])))
    storage.write_files(folder, files)
    print(f"steps {first} to {last}: {len(rows)} requests, {sum(len(row.preempted) for row in rows)} preemptions")
    if len(rows) > MAX_ROWS:
        print(f"the first {MAX_ROWS} requests are drawn; fewer steps have fewer")
    for name in files:
        print(f"results: {folder / name}")


def rows_of(steps: Iterable[StepDecisions], first: int, last: int) -> list[Row]:
    """The requests that were there in the steps from `first` to `last`, in the order in which they came."""
    known: dict[str, _Progress] = {}
    rows: dict[str, Row] = {}
    for step in steps:
        if step.step > last:
            break
        for news in step.news:
            if isinstance(news, Arrival):
                known[news.request_id] = _Progress(news.num_prompt_tokens, news.num_prompt_tokens)
            else:
                known.pop(news, None)
        for request_id in step.finished_ids:
            known.pop(request_id, None)
        for request_id in step.preempted_ids:
            if request_id in known:
                known[request_id].has_place, known[request_id].num_computed_tokens = False, 0
        for request_id, admission in step.admissions.items():
            known[request_id].has_place, known[request_id].num_computed_tokens = True, admission.num_cached_tokens
        if step.step >= first:
            _draw_step(step, known, rows)
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            known[request_id].num_computed_tokens += num_tokens
            known[request_id].num_tokens += len(step.sampled_token_ids.get(request_id, ()))
    return list(rows.values())


def _draw_step(step: StepDecisions, known: dict[str, _Progress], rows: dict[str, Row]) -> None:
    """Note what the step did for every request that is there."""
    for request_id, progress in known.items():
        row = rows.setdefault(request_id, Row(request_id))
        num_tokens = step.num_scheduled_tokens.get(request_id, 0)
        end = progress.num_computed_tokens + num_tokens
        if request_id in step.preempted_ids:
            row.preempted.append(step.step)
        if num_tokens == 1 and end == progress.num_tokens > progress.num_prompt_tokens:
            row.decodes.append(step.step)
        elif num_tokens:
            row.prefills[step.step] = num_tokens
        elif progress.has_place:
            row.held.append(step.step)
        else:
            row.waited.append(step.step)
