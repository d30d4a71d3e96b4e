"""Golden files: the same decisions pass; the first step that differs is named, with who got what."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.composed import CONF, Composed
from experiments.policy_under_test import policy_under_test
from experiments.regression import FixedWorkload, Golden, compare, fixed_workloads, run, update
from schedulers import FCFS, Batch, ChunkedPrefill, InputError, Request, SchedulerError, Status
from schedulers.conformance import Policy
from tests.experiments.command_line import ROOT, start, twinserve

GOLDENS = ROOT / "tests" / "goldens"
SCHEDULERS = sorted(file.stem for file in (CONF / "scheduler").glob("*.yaml") if file.stem != "custom")
WORKLOADS = {workload.name: workload for workload in fixed_workloads()}


def policy_of(name: str) -> tuple[str, Policy]:
    """The policy of conf/scheduler/NAME.yaml, as `experiment=regression scheduler=NAME` finds it."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["experiment=regression", f"scheduler={name}"])
    return policy_under_test(Composed(config, {"scheduler": name}, ["experiment", "scheduler"]), "regression")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_our_policies_decide_what_their_goldens_say(name: str) -> None:
    """Goldens are made by experiment=regression scheduler=NAME question.goldens=tests/goldens question.update=true."""
    label, policy = policy_of(name)
    for workload in WORKLOADS.values():
        assert compare(label, policy, workload, GOLDENS / label) == ""


def test_the_fixed_workloads_bring_preemptions_hits_and_every_policy_its_own_decisions() -> None:
    golden = run("x", ChunkedPrefill, WORKLOADS["small_cache"])
    assert golden.metrics["preemptions"].value > 3  # type: ignore[operator]
    assert run("x", ChunkedPrefill, WORKLOADS["shared_prefixes"]).metrics["prefix_cache_hit_share"].value > 0.2  # type: ignore[operator]
    for workload in WORKLOADS:
        texts = [(GOLDENS / name / f"{workload}.txt").read_text() for name in ("static", "fcfs", "chunked_prefill")]
        assert len({text.partition("\nstep")[2] for text in texts}) == 3


# -- planted changes ---------------------------------------------------------------------------------------------------


class OneTokenLessInStep11(ChunkedPrefill):
    def chunk(self, request: Request, batch: Batch) -> int:
        return batch.budget_left - (batch.step == 11)


class OldestYields(ChunkedPrefill):
    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        return running[0] if running[0] is not candidate else super().victim(running, candidate)


class LastButOneYields(ChunkedPrefill):
    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        return running[-2:][0] if candidate.status is Status.RUNNING else None


class LastAdmittedFirst(ChunkedPrefill):
    def compose(self, batch: Batch, now: float) -> None:
        if batch.step == 5:
            for request in reversed(batch.running):
                batch.schedule(request)
        super().compose(batch, now)


class NobodyStartsInStep2(ChunkedPrefill):
    def admit(self, request: Request, batch: Batch) -> bool:
        return batch.step != 2


class LastInFirstOut(ChunkedPrefill):
    def order(self, request: Request, now: float) -> float:
        return -request.arrival_time if request.request_id == "r9" else 0.0


@pytest.mark.parametrize(
    ("policy", "workload", "step", "said"),
    [
        (OneTokenLessInStep11, "mixed_lengths", 11, "r5 gets 125 tokens, 1 fewer than in the golden (126)"),
        (NobodyStartsInStep2, "bursts", 2, " is not admitted, in the golden it is"),
        (OldestYields, "small_cache", 0, "r0 is preempted, in the golden it is not"),
        (LastButOneYields, "small_cache", 0, " is not preempted, in the golden it is"),
        (LastAdmittedFirst, "bursts", 5, "the batch is in the order r"),
        (LastInFirstOut, "bursts", 0, "r9 gets "),
    ],
)
def test_a_planted_change_is_caught_at_the_step_where_it_comes_and_told_in_words(
    policy: type[ChunkedPrefill], workload: str, step: int, said: str
) -> None:
    report = compare("chunked_prefill", policy, WORKLOADS[workload], GOLDENS / "chunked_prefill")
    before = Golden.parse((GOLDENS / "chunked_prefill" / f"{workload}.txt").read_text()).steps
    now = run("chunked_prefill", policy, WORKLOADS[workload]).steps
    first = next(
        number for number, pair in enumerate(zip(before, now, strict=False), 1) if len(set(map(str, pair))) > 1
    )
    assert step in (0, first)
    assert f"the first step that differs is step {first}\n    golden: {before[first - 1]}\n" in report
    assert f"    now:    {now[first - 1]}\n" in report
    assert said in report


def test_metrics_beyond_their_tolerance_are_listed_and_others_are_not() -> None:
    report = compare("chunked_prefill", FCFS, WORKLOADS["mixed_lengths"], GOLDENS / "chunked_prefill")
    listed = report.partition("metrics beyond their tolerance:\n")[2].splitlines()
    assert any(line.startswith("    ttft_s.mean is 0.") and ", in the golden 0." in line for line in listed)
    assert not any("completed" in line for line in listed)


def test_a_metric_is_compared_with_the_tolerance_that_its_line_gives(tmp_path: Path) -> None:
    workload = WORKLOADS["bursts"]
    update("fcfs", FCFS, tmp_path)
    file = tmp_path / "bursts.txt"
    (line,) = [line for line in file.read_text().splitlines() if line.startswith("makespan_s ")]
    value = float(line.split()[1])
    file.write_text(file.read_text().replace(line, f"makespan_s {value * 1.05:.6g} within 1 %"))
    assert f"makespan_s is {value:.6g}, in the golden {value * 1.05:.6g} within 1 %" in compare(
        "fcfs", FCFS, workload, tmp_path
    )
    file.write_text(file.read_text().replace("6g} within 1 %", "").replace(" within 1 %", " within 10 %"))
    assert compare("fcfs", FCFS, workload, tmp_path) == ""
    update("fcfs", FCFS, tmp_path)
    assert f"makespan_s {value:.6g} within 10 %" in file.read_text(), "an edited tolerance is lost"


def test_a_run_with_fewer_steps_than_its_golden_says_so(tmp_path: Path) -> None:
    update("fcfs", FCFS, tmp_path)
    file = tmp_path / "bursts.txt"
    number = len(Golden.parse(file.read_text()).steps)
    file.write_text(file.read_text().replace("completed ", f"step {number + 1}: r1 +1\ncompleted ", 1))
    report = compare("fcfs", FCFS, WORKLOADS["bursts"], tmp_path)
    assert f"is step {number + 1}\n" in report
    assert f"the golden has {number + 1} steps, this run {number}" in report


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_golden_is_small_reads_back_and_is_written_alike_again(tmp_path: Path) -> None:
    assert "5 files, changed: mixed_lengths, bursts" in update("fcfs", FCFS, tmp_path)
    texts = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert max(map(len, texts.values())) < 5000
    assert all(str(Golden.parse(text)) == text for text in texts.values())
    assert update("fcfs", FCFS, tmp_path).endswith("5 files, changed: none")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == texts


def test_a_missing_golden_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"bursts\.txt does not exist.*question\.update=true"):
        compare("fcfs", FCFS, WORKLOADS["bursts"], tmp_path)


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        ("policy fcfs\n", "", "does not begin with a line 'policy ...'"),
        ("step 1: ", "step 2: ", "line 5, 'step 2: .*step 1 should come here"),
        (" +1;", " +one;", r"line \d+, .*is not like"),
        ("makespan_s", "<<<<<<< HEAD\nmakespan_s", "line .*'<<<<<<< HEAD': it is neither"),
        ("makespan_s 0", "makespan_s x", "could not convert"),
        ("", None, "it does not begin"),
    ],
)
def test_a_damaged_golden_is_named_with_its_line(was: str, becomes: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "bursts.txt"
    text = (GOLDENS / "fcfs" / "bursts.txt").read_text()
    assert was in text
    file.write_text("" if becomes is None else text.replace(was, becomes, 1))
    with pytest.raises(InputError, match=rf"bursts\.txt is damaged: .*{said}"):
        compare("fcfs", FCFS, WORKLOADS["bursts"], tmp_path)
    update("fcfs", FCFS, tmp_path)
    assert compare("fcfs", FCFS, WORKLOADS["bursts"], tmp_path) == ""


@pytest.mark.parametrize(("label", "file"), [("chunked_prefill", "bursts"), ("fcfs", "priorities")])
def test_a_golden_of_another_policy_or_workload_is_not_compared_with(label: str, file: str, tmp_path: Path) -> None:
    shutil.copy(GOLDENS / label / f"{file}.txt", tmp_path / "bursts.txt")
    with pytest.raises(
        InputError, match=r"bursts\.txt is of the (policy chunked_prefill|workload priorities \w+), not "
    ):
        compare("fcfs", FCFS, WORKLOADS["bursts"], tmp_path)


def test_a_policy_that_fails_names_the_workload_and_the_step(tmp_path: Path) -> None:
    class Idles(ChunkedPrefill):
        def compose(self, batch: Batch, now: float) -> None:
            pass

    with pytest.raises(SchedulerError, match="workload mixed_lengths: step 1: Idles schedules nothing"):
        update("idles", Idles, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_workload_has_a_digest_that_tells_it_from_any_other() -> None:
    assert len({workload.digest for workload in WORKLOADS.values()}) == len(WORKLOADS)
    one = WORKLOADS["bursts"]
    fewer = FixedWorkload(one.name, one.about, one.limits, one.arrivals[:-1])
    assert fewer.digest != one.digest


# -- from the command line ---------------------------------------------------------------------------------------------

MINE = """
from schedulers import ChunkedPrefill


class Mine(ChunkedPrefill):
    def order(self, request, now):
        return request.num_prompt_tokens
"""


def test_a_policy_of_one_s_own_is_guarded_in_its_own_repository(tmp_path: Path) -> None:
    ask = partial(twinserve, "experiment=regression", "scheduler._target_=mine.Mine", folder=tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    assert ask().returncode == 2
    assert ask("question.update=true").returncode == 0
    assert (tmp_path / "goldens" / "Mine" / "bursts.txt").is_file()
    same = ask()
    assert (same.returncode, same.stdout) == (0, "Mine decides as before in all 5 workloads (goldens/Mine)\n")
    (tmp_path / "mine.py").write_text(MINE.replace("return ", "return -"))
    other = ask()
    assert other.returncode == 1
    assert "Mine differs from goldens/Mine in 4 of 5 workloads" in other.stdout
    assert "the first step that differs is step " in other.stdout
    assert other.stderr == ""


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("mode=real", "has no mode=real.*experiment=replay"),
        ("workload.rate=3", r"workload\.rate has no part in"),
        ("seed=1", "seed has no part in"),
        ("scheduler.token_budget=64", r"scheduler\.token_budget has no part in"),
    ],
)
def test_what_has_no_part_in_it_is_refused_by_name(override: str, said: str) -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["experiment=regression", override])
    composed = Composed(config, {"scheduler": "chunked_prefill"}, [override.partition("=")[0]])
    with pytest.raises(InputError, match=said):
        policy_under_test(composed, "regression")


def test_an_examination_that_is_interrupted_says_so_in_a_line_and_leaves_no_process() -> None:
    process = start("experiment=conformance", "question.scenarios=1000000")
    time.sleep(4)
    os.killpg(process.pid, signal.SIGINT)
    printed, error = process.communicate(timeout=30)
    assert (process.returncode, printed, error.count("\n")) == (130, "", 2)
    assert "interrupted" in error
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_policy_is_examined_from_the_command_line_with_its_parameters(tmp_path: Path) -> None:
    ask = partial(twinserve, "experiment=conformance", "question.scenarios=60", folder=tmp_path)
    good = ask("scheduler=chunked_prefill", "scheduler.max_chunk=3")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith(
        "ChunkedPrefill max_chunk=3 victim_rule='last_admitted' conforms: 14 rules hold in 60 scenarios of "
    )
    bad = ask("scheduler._target_=tests.schedulers.faulty.OneOver")
    assert bad.returncode == 1
    assert bad.stdout.startswith("OneOver does not conform.\n\nThe rule: a step never computes more tokens than")
    wrong = ask("scheduler=fcfs", "question.scenarios=0")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "question.scenarios=0: it must be a whole number" in wrong.stderr
