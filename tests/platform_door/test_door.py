"""`python -m platform`: the application, and what the standard module of the name would have said."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from platform.__main__ import main, root_first

import pytest

from tests.platform_door.process import ROOT, output_of, run

STANDARD_WORDS = [["--terse"], ["terse"], ["--nonaliased"], ["nonaliased"], ["nonaliased", "--terse"]]


@pytest.mark.parametrize("words", STANDARD_WORDS, ids=" ".join)
def test_the_standard_module_s_words_are_answered_as_it_answers_them(words: list[str]) -> None:
    assert output_of("-m", "platform", *words) == output_of("-I", "-m", "platform", *words)


def test_the_standard_module_s_words_need_nothing_installed() -> None:
    assert output_of("-S", "-m", "platform", "--terse") == output_of("-I", "-m", "platform", "--terse")


def test_without_arguments_it_tells_how_to_use_it_and_ends_with_the_standard_line() -> None:
    usage = output_of("-m", "platform")
    assert "python -m platform" in usage
    for group in ("experiment", "scheduler"):
        names = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert names
        assert not [name for name in names if name not in usage]
    assert usage.splitlines()[-1] + "\n" == output_of("-I", "-m", "platform")


def test_help_is_printed_on_demand() -> None:
    assert "experiment" in output_of("-m", "platform", "--help")


def test_a_misspelt_scheduler_ends_in_a_message_that_names_it() -> None:
    refused = run(sys.executable, "-m", "platform", "scheduler=chunked_prefil")
    assert refused.returncode != 0
    assert "chunked_prefil" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_python_that_lacks_the_dependencies_is_told_how_to_get_them() -> None:
    refused = run(sys.executable, "-S", "-m", "platform", "experiment=sched_sweep")  # -S: without installed packages
    assert refused.returncode == 1
    assert "make run" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("unbuffered", ["", "-u"], ids=["buffered", "unbuffered"])
def test_a_reader_that_stops_reading_is_no_error(unbuffered: str) -> None:
    assert run("sh", "-c", f"'{sys.executable}' {unbuffered} -m platform | true").stderr == ""


def test_child_processes_have_the_root_first_on_their_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["elsewhere", str(ROOT)]))
    main([])
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(ROOT), "elsewhere"])
    assert capsys.readouterr().out


@pytest.mark.parametrize("before", ["", os.pathsep, str(ROOT)], ids=["empty", "separators", "already there"])
def test_an_empty_entry_which_would_mean_any_folder_is_not_left_on_the_path(before: str) -> None:
    assert root_first(before) == str(ROOT)


def test_the_console_script_runs_the_same_application_from_any_folder(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("twinserve")
    if not script.exists():
        pytest.skip("twinserve is not installed in this environment, only its dependencies")
    told = run(script, "--help", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert told.stdout == output_of("-m", "platform", "--help")


def test_no_room_imports_the_door() -> None:
    for room in ("schedulers", "sim", "real", "kernels", "experiments"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            assert "import platform." not in text, path
            assert "from platform." not in text, path
