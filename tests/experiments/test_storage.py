"""A run's folder is written whole or not at all, and holds the run."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from experiments.columns import RequestColumns, StepColumns
from experiments.storage import is_complete, is_sound, open_run, read_run, write_files, write_run
from experiments.summary import summarize
from schedulers.errors import InputError
from schedulers.records import RequestRecord, StepRecord
from schedulers.request import SLO
from tests.experiments.synthetic import toy_run

Records = tuple[list[StepRecord], list[RequestRecord]]


@pytest.fixture
def records() -> Records:
    return toy_run(num_requests=40, slo=SLO(ttft_s=1.0))


def write(folder: Path, records: Records) -> None:
    write_run(folder, "seed: 0\n", *records, summarize(*records, None))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_read_back_is_the_run_that_was_written(tmp_path: Path, records: Records) -> None:
    write(tmp_path / "run", records)
    run = read_run(tmp_path / "run")
    assert run.config_yaml == "seed: 0\n"
    assert run.summary == summarize(*records, None)
    for stored, given in ((run.steps, StepColumns.of(records[0])), (run.requests, RequestColumns.of(records[1]))):
        for field in dataclasses.fields(stored):
            np.testing.assert_array_equal(getattr(stored, field.name), getattr(given, field.name), err_msg=field.name)
            kept, original = getattr(stored, field.name), getattr(given, field.name)
            assert isinstance(kept, list) or kept.dtype == original.dtype, field.name


@pytest.mark.parametrize("count", [1, 12])
def test_a_run_without_steps_or_with_nothing_but_missing_values_reads_back_too(tmp_path: Path, count: int) -> None:
    _, requests = toy_run(num_requests=count)
    bare = [request._replace(first_scheduled_s=None, token_times_s=(), num_output_tokens=0) for request in requests]
    for kept in ([], bare):
        write(tmp_path, ([], kept))
        run = read_run(tmp_path)
        assert len(run.requests) == len(kept)
        assert np.isnan(run.requests.first_scheduled_s).all()


def test_parquet_columns_have_the_names_of_the_records_and_nulls_for_what_is_missing(
    tmp_path: Path, records: Records
) -> None:
    write(tmp_path, records)
    assert pq.read_schema(tmp_path / "steps.parquet").names == list(StepRecord._fields)
    requests = pq.read_table(tmp_path / "requests.parquet")
    assert requests.column_names == list(RequestRecord._fields)
    assert requests["first_scheduled_s"].null_count == 1
    assert requests["slo_tpot_s"].null_count == len(records[1])
    assert tuple(requests["token_times_s"][5].as_py()) == records[1][5].token_times_s


def test_the_histogram_counts_every_step_for_prefill_and_for_decode(tmp_path: Path, records: Records) -> None:
    write(tmp_path, records)
    with (tmp_path / "token_histogram.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for kind in ("prefill", "decode"):
        assert sum(int(row["steps"]) for row in rows if row["kind"] == kind) == len(records[0])


def test_the_same_run_gives_the_same_bytes(tmp_path: Path, records: Records) -> None:
    write(tmp_path / "a", records)
    write(tmp_path / "b", records)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, records: Records) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write results to .*file/run"):
        write(tmp_path / "file" / "run", records)


def test_a_full_disk_ends_in_one_message_and_leaves_the_old_run_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, toy_run(num_requests=3))
    before = contents(tmp_path)
    script = (
        "import pathlib, resource, sys\n"
        "from tests.experiments.test_storage import write\n"
        "from tests.experiments.synthetic import toy_run\n"
        "from schedulers.errors import InputError\n"
        "run = toy_run(num_requests=200)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try:\n    write(pathlib.Path(sys.argv[1]), run)\n"
        "except InputError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    shown = subprocess.run(command, check=True, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert shown.stdout.startswith(f"cannot write results to {tmp_path}: ")
    assert contents(tmp_path) == before


def test_a_run_counts_as_complete_only_with_its_last_file(tmp_path: Path, records: Records) -> None:
    write(tmp_path, records)
    assert is_complete(tmp_path)
    (tmp_path / "summary.json").unlink()
    assert not is_complete(tmp_path)
    with pytest.raises(InputError, match="no complete run"):
        read_run(tmp_path)


def test_replacing_files_takes_the_last_one_away_first(tmp_path: Path) -> None:
    write_files(tmp_path, {"data": b"old", "done": b"old"})
    (tmp_path / "data").unlink()
    (tmp_path / "data").mkdir()  # so that the new file cannot take its place
    with pytest.raises(InputError):
        write_files(tmp_path, {"data": b"new", "done": b"new"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize("name", ["steps.parquet", "requests.parquet", "config.yaml", "summary.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "binary"])
def test_a_damaged_file_is_named(tmp_path: Path, records: Records, name: str, damage: str) -> None:
    write(tmp_path, records)
    path = tmp_path / name
    if damage == "gone":
        path.unlink()
    elif damage == "cut" and name != "config.yaml":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(b"\xff\x00" * 100)
    with pytest.raises(InputError, match=name):
        read_run(tmp_path)


def test_a_summary_with_nan_is_refused(tmp_path: Path, records: Records) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_run(tmp_path, "", *records, {"share": float("nan")})
    assert not contents(tmp_path)


@pytest.mark.parametrize(("name", "column"), [("steps.parquet", "replica"), ("requests.parquet", "replica")])
def test_a_run_of_before_a_column_was_there_is_named(tmp_path: Path, records: Records, name: str, column: str) -> None:
    write(tmp_path, records)
    pq.write_table(pq.read_table(tmp_path / name).drop_columns(column), tmp_path / name)
    run = open_run(tmp_path)
    with pytest.raises(InputError, match=rf"{name} is missing or damaged.*{column}"):
        list(run.steps) + list(run.requests)
    with pytest.raises(InputError, match=rf"{name} is missing or damaged.*{column}"):
        read_run(tmp_path)
    assert not is_sound(tmp_path)
