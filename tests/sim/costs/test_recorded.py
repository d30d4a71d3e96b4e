"""Replay of recorded step times."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from schedulers.errors import InputError
from sim.costs import Recorded
from tests.sim.conf import device, model
from tests.sim.costs.batches import batch

LLAMA = model("llama-3.1-8b")
H200 = device("h200")


def test_steps_take_what_they_took_in_the_recording_in_order() -> None:
    cost = Recorded(model=LLAMA, device=H200, step_times_s=[0.25, 0.5, 0.125])
    assert [cost.step_time(batch(decodes=[10])) for _ in range(3)] == [0.25, 0.5, 0.125]


def test_a_step_beyond_the_recording_is_refused_with_its_length() -> None:
    cost = Recorded(model=LLAMA, device=H200, step_times_s=[0.25])
    cost.step_time(batch(decodes=[10]))
    with pytest.raises(InputError, match="recording has 1 steps"):
        cost.step_time(batch((30, 0), decodes=[10]))


def test_the_steps_of_a_run_are_read_from_its_folder(tmp_path: Path) -> None:
    pd.DataFrame({"step": [1, 2], "start_s": [0.0, 2.0], "end_s": [0.5, 2.25]}).to_parquet(tmp_path / "steps.parquet")
    cost = Recorded.from_run(model=LLAMA, device=H200, path=str(tmp_path))
    assert [cost.step_time(batch(decodes=[10])) for _ in range(2)] == [0.5, 0.25]
    assert cost.warnings() == []
    assert "2 recorded steps" in cost.describe()


@pytest.mark.parametrize("content", [None, b"", b"not parquet"])
def test_a_missing_or_broken_recording_is_refused_by_file(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "steps.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"steps\.parquet"):
        Recorded.from_run(model=LLAMA, device=H200, path=str(tmp_path))


def test_a_recording_without_times_is_refused_by_file(tmp_path: Path) -> None:
    pd.DataFrame({"step": [1, 2]}).to_parquet(tmp_path / "steps.parquet")
    with pytest.raises(InputError, match=r"steps\.parquet.*start_s"):
        Recorded.from_run(model=LLAMA, device=H200, path=str(tmp_path))


def test_a_recording_of_a_cluster_is_refused_by_file(tmp_path: Path) -> None:
    steps = {"start_s": [0.0, 0.0], "end_s": [0.5, 0.25], "replica": [0, 1]}
    pd.DataFrame(steps).to_parquet(tmp_path / "steps.parquet")
    with pytest.raises(InputError, match=r"steps\.parquet is of a cluster"):
        Recorded.from_run(model=LLAMA, device=H200, path=str(tmp_path))
