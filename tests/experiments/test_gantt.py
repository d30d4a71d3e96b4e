"""The steps of a run, a row a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.gantt import rows_of
from experiments.run import ensure, simulate_point
from tests.experiments.command_line import twinserve
from tests.experiments.points import point

BUSY = ("workload.rate=60", "workload.num_requests=24", "engine.num_blocks=900", "mode.decisions=true")


def test_rows_hold_every_token_that_was_computed_and_every_preemption() -> None:
    outcome = simulate_point(point(*BUSY))
    assert outcome.decisions
    last = outcome.decisions[-1].step
    rows = rows_of(outcome.decisions, 1, last)
    assert [row.request_id for row in rows] == [f"r{number:05}" for number in range(24)]
    assert sum(sum(row.prefills.values()) for row in rows) == sum(step.num_prefill_tokens for step in outcome.steps)
    assert sum(len(row.decodes) for row in rows) == sum(step.num_decode_tokens for step in outcome.steps)
    preempted = sum(len(row.preempted) for row in rows)
    assert preempted == sum(step.num_preemptions for step in outcome.steps) > 0
    for row in rows:
        cells = [*row.prefills, *row.decodes, *row.held, *row.waited]
        assert len(cells) == len(set(cells))  # a request is in one state in a step


def test_a_part_of_a_run_is_that_part_of_the_whole() -> None:
    outcome = simulate_point(point(*BUSY))
    assert outcome.decisions
    whole = {row.request_id: row for row in rows_of(outcome.decisions, 1, len(outcome.decisions))}
    for row in rows_of(outcome.decisions, 50, 80):
        assert row.decodes == [step for step in whole[row.request_id].decodes if 50 <= step <= 80]
        assert row.waited == [step for step in whole[row.request_id].waited if 50 <= step <= 80]


def test_the_steps_of_a_stored_run_are_drawn_and_a_wrong_range_is_one_error(tmp_path: Path) -> None:
    run = point(*BUSY, f"results={tmp_path}")
    ensure(run)
    done = twinserve("experiment=gantt", f"path={run.folder}", "question.first_step=10", "question.last_step=30")
    assert done.returncode == 0, done.stderr
    assert "steps 10 to 30: " in done.stdout
    for kind in ("png", "pdf"):
        assert (run.folder / "figures" / f"gantt_10_30.{kind}").stat().st_size > 5000


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["question.first_step=0"], "question.first_step=0"),
        (["question.first_step=9", "question.last_step=3"], "question.last_step=3: it must be at least"),
        (["question.last_step=900"], "200 steps can be read at most"),
        (["question.lines=3"], "question.lines"),
        ([], "has no decisions.jsonl.gz"),
        (["path=null"], "path=None"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_line(overrides: list[str], named: str, tmp_path: Path) -> None:
    done = twinserve("experiment=gantt", f"path={tmp_path}", *overrides)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
