"""The tokens per step of a run, as text."""

from __future__ import annotations

from pathlib import Path

from experiments.columns import StepColumns
from experiments.step_histogram import step_histogram
from schedulers.records import StepRecord
from tests.experiments.command_line import twinserve


def step(prefill: int, decode: int) -> StepRecord:
    return StepRecord(1, 0.0, 1.0, prefill, decode, 0, 0, 0, 0.0, 0)


def test_each_row_has_the_share_of_steps_and_the_longest_bars_are_full() -> None:
    steps = [step(0, 1), step(0, 1), step(0, 3), step(512, 0)]
    lines = step_histogram([StepColumns.of(steps[:1]), StepColumns.of(steps[1:])]).splitlines()
    assert lines[0] == "tokens per step, in shares of 4 steps:"
    cells = {line.split()[0]: line for line in lines[2:]}
    assert list(cells) == ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256-511",
                           "512-1,023"]  # fmt: skip
    assert cells["0"].split() == ["0", "75.0%", "25.0%"]
    assert cells["1"].split() == ["1", "█" * 24, "50.0%"]
    assert cells["2-3"].split() == ["2-3", "█" * 12, "25.0%"]
    assert cells["512-1,023"].split() == ["512-1,023", "█" * 24, "25.0%"]
    assert len(max(lines, key=len)) < 80


def test_a_run_without_steps_has_an_empty_histogram() -> None:
    assert "0 steps" in step_histogram([])


def test_a_pipe_gets_no_histogram_unless_it_is_asked_for(tmp_path: Path) -> None:
    small = ("cost=roofline", "workload.num_requests=5", "workload.rate=50", f"results={tmp_path}")
    assert "tokens per step" not in twinserve(*small).stdout
    assert "tokens per step" in twinserve(*small, "question.histogram=true").stdout
    wrong = twinserve(*small, "question.histogram=7")
    assert wrong.returncode == 2
    assert "question.histogram=7: it must be true or false" in wrong.stderr
