"""The conformance kit: our policies pass; a planted fault is caught, in the smallest workload that shows it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from schedulers import SLO, Batch, ChunkedPrefill, InputError, Limits, Scheduler
from schedulers.brief import StepBrief
from schedulers.conformance import (
    Examination,
    Job,
    Nonconformance,
    Policy,
    Rule,
    Scenario,
    Violation,
    check_conformance,
    conformance,
    examine,
    examine_scenario,
)
from schedulers.conformance.scenario import draw
from tests.schedulers import faulty
from tests.schedulers.builders import POLICIES
from tests.schedulers.chaotic import Displacing

ROOT = Path(__file__).resolve().parents[2]


def violation_of(policy: Policy) -> Violation:
    """What the kit finds."""
    violation = examine(policy).violation
    assert violation is not None
    return violation


@pytest.mark.parametrize("policy", [*POLICIES, Displacing])
def test_our_policies_conform(policy: type[Scheduler]) -> None:
    check_conformance(policy, scenarios=60)


test_a_policy_with_parameters_conforms_in_one_line = conformance(partial(ChunkedPrefill, max_chunk=2), scenarios=50)


@pytest.mark.parametrize(
    ("policy", "rule", "said", "num_jobs"),
    [
        (faulty.Starves, Rule.STARVATION, "step 2: nothing is scheduled, r1 is still live", 2),
        (faulty.Displaces, Rule.STARVATION, r"after \d+ steps r0, r1 are still not served", 2),
        (
            faulty.VictimTwice,
            Rule.ANSWERS,
            "step .: VictimTwice chose .*'r0'.* as a victim, which is chosen already",
            3,
        ),
        (faulty.PreemptedTwice, Rule.PREEMPTION, "r1 is preempted 2 times in a step and counts 1", 2),
        (faulty.OneOver, Rule.BUDGET, "step 1: 2 tokens are to be computed, and token_budget=1", 1),
        (faulty.LargerLimits, Rule.SLOTS, "step 1: 2 requests run, and max_num_seqs=1", 2),
        (faulty.Idles, Rule.PROGRESS, "step 1: nothing is scheduled, r0 is still live", 1),
        (faulty.Leaks, Rule.BLOCKS, "block 0 is in 0 block tables but counts 1 owners", 1),
        (faulty.Reserves, Rule.BLOCKS, r"owns the blocks \[.*\]; workers know \(blocks, computed\) \(\[\d\]", 2),
        (faulty.Forgets, Rule.STATE, "num_running=0 and num_waiting=0, and 0 requests run and 1 wait", 1),
        (faulty.Picky, Rule.REFUSAL, "could be served and is refused: that is too long for me", 1),
        (faulty.Drops, Rule.TOKENS, r"r0 ended with \[\], and \[\d\] was sampled", 1),
        (faulty.SamplesInOrder, Rule.SAMPLING, r"\['r1', 'r0'\] are to sample, and \['r0', 'r1'\]", 2),
        (faulty.Promotes, Rule.STATE, "what the client of r0 asked for was changed", 1),
        (faulty.HashOrder, Rule.REPEATABLE, "played in a process whose strings hash differently, step 1 is another", 4),
        (faulty.IdOrder, Rule.REPEATABLE, "step 1 is another: r. gets ", 4),
        (faulty.WallClock, Rule.REPEATABLE, "step 1 is another: r. gets ", 4),
        (faulty.Shares, Rule.REPEATABLE, "played a second time, step 1 is another: ", 4),
        (faulty.Unpredicted, Rule.ANSWERS, "Unpredicted raised TypeError: '<' not supported", 2),
        (faulty.ReturnsNothing, Rule.ANSWERS, "schedule returns None, which is no SchedulerOutput", 1),
        (faulty.KeepsSecrets, Rule.ENDING, "step 2: workers are not told that r0 ended", 1),
        (faulty.EndsTheProgram, Rule.ANSWERS, "the policy composes step 1 and ends the program with 0", 1),
        (faulty.Spins, Rule.ANSWERS, r"composes step \d and has computed for 0.3 s \(in .*faulty.py, line ", 4),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_planted_fault_is_caught_said_and_made_small(
    policy: type[Scheduler], rule: Rule, said: str, num_jobs: int
) -> None:
    examination = examine(policy)
    violation = examination.violation
    assert violation is not None
    assert violation.broken.rule is rule
    assert len(violation.scenario.jobs) <= num_jobs
    report = str(examination)
    assert report.startswith(f"{policy.__name__} does not conform.\n\nThe rule: {rule.value}.\nIt breaks: ")
    assert re.search(said, report), report
    for part in (
        "limits: token_budget=",
        "\n    request  arrives  prompt tokens  output tokens  priority",
        "examine_scenario(",
    ):
        assert part in report


def test_the_report_of_a_starved_request_reads_from_the_rule_to_python_that_makes_it_happen() -> None:
    assert str(examine(faulty.Starves)) == (
        """\
Starves does not conform.

The rule: every request of a finite workload ends.
It breaks: step 2: nothing is scheduled, r1 is still live.

The smallest case found:

    limits: token_budget=1 max_num_seqs=1 num_blocks=1 block_size=2 max_model_len=2 prefix_caching=False

    request  arrives  prompt tokens  output tokens  priority  aborted
    r0       0 s      1              1              0         -
    r1       0 s      1              1              2         -

What is decided:

    step 1: r0 +1 (admitted)
    step 2: nothing; r0 ended

To see it happen:

    from schedulers import Limits
    from schedulers.conformance import Job, Scenario, examine_scenario
    from tests.schedulers.faulty import Starves

    limits = Limits(token_budget=1, max_num_seqs=1, num_blocks=1, block_size=2, max_model_len=2, prefix_caching=False)
    jobs = (
        Job('r0'),
        Job('r1', priority=2),
    )
    examine_scenario(Starves, Scenario(limits, jobs, seed=0))"""
    )


def test_the_python_of_a_report_breaks_the_rule_again() -> None:
    policy = partial(faulty.OneOver, max_chunk=3)
    report = str(examine(policy))
    python = report.partition("To see it happen:\n\n")[2].replace("\n    ", "\n").strip()
    assert "partial(OneOver, max_chunk=3)" in python
    with pytest.raises(Exception, match="token_budget=1; but a step never computes more tokens"):
        exec(python, {})  # noqa: S102 - what a reader would paste


def test_rare_fields_and_prompts_that_may_hit_the_cache_are_in_the_table() -> None:
    jobs = (Job("a", (0, 1), 2, arrives_s=1.5, slo=SLO(ttft_s=2.0)), Job("b", (0,), None, aborted_s=2.0, stops=True))
    limits = Limits(token_budget=4, max_num_seqs=1, num_blocks=8, block_size=2)
    table = str(Scenario(limits, jobs)).splitlines()[2:]
    assert [line.split("  ")[0].strip() for line in table] == ["request", "a", "b"]
    assert all(cell in table[1] for cell in ("1.5 s", "SLO(ttft_s=2.0, tpot_s=None)", "0 1"))
    assert all(cell in table[2] for cell in ("no limit", "2 s", "True"))


def test_the_same_seed_draws_the_same_scenarios_and_reports_the_same() -> None:
    assert draw(3, 4) == draw(3, 4) != draw(3, 5)
    assert str(examine(faulty.OneOver)) == str(examine(faulty.OneOver))


def test_a_scenario_counts_its_steps_and_that_of_one_more_request() -> None:
    limits = Limits(token_budget=4, max_num_seqs=1, num_blocks=8, block_size=2)
    assert examine_scenario(ChunkedPrefill, Scenario(limits, (Job("r0", (0, 1, 2), 3, arrives_s=7.5),))) == 3 + 1


def test_limits_that_a_policy_refuses_are_left_out_and_told() -> None:
    examination = examine(NeedsTwoSlots, scenarios=40)
    assert examination.violation is None
    assert examination.num_refused > 0
    assert "with limits that it refuses were left out" in str(examination)


class NeedsTwoSlots(ChunkedPrefill):
    def __init__(self, limits: Limits, *, seed: int = 0) -> None:
        if limits.max_num_seqs < 2:
            raise InputError("two slots, please")
        super().__init__(limits, seed=seed)


def test_a_policy_that_refuses_all_limits_is_an_error_in_its_own_words() -> None:
    with pytest.raises(InputError, match="max_chunk=0: it must be"):
        examine(partial(ChunkedPrefill, max_chunk=0))


def test_a_policy_that_cannot_be_made_elsewhere_is_examined_here_and_the_report_says_what_was_not_checked() -> None:
    class Local(ChunkedPrefill):
        pass

    examination = examine(Local, scenarios=20)
    assert examination.violation is None
    assert "Not compared with its decisions under another hash seed: " in str(examination)
    assert "Local" in examination.unchecked


def test_in_another_thread_policies_are_examined_too() -> None:
    found: list[Examination] = []
    thread = threading.Thread(target=lambda: found.append(examine(ChunkedPrefill, scenarios=5)))
    thread.start()
    thread.join()
    assert found[0].violation is None


def test_in_a_repository_of_one_s_own_one_line_of_pytest_shows_the_report_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from schedulers import Scheduler\n\n\n"
        "class Mine(Scheduler):\n    def admit(self, request, batch):\n        return request.priority < 2\n"
    )
    (tmp_path / "test_mine.py").write_text(
        "from mine import Mine\nfrom schedulers import FCFS\nfrom schedulers.conformance import conformance\n\n"
        "test_mine_conforms = conformance(Mine)\ntest_fcfs_conforms = conformance(FCFS, scenarios=20)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "Mine does not conform." in done.stdout
    assert "r1       0 s      1              1              2" in done.stdout
    assert "examine(policy" not in done.stdout, "the kit's own code is shown"


def test_a_policy_may_refuse_requests_without_the_prediction_that_it_goes_by() -> None:
    check_conformance(faulty.NeedsPredictions)


def test_a_policy_is_asked_for_no_step_while_nobody_is_live() -> None:
    check_conformance(NeedsSomebody, scenarios=40)


class NeedsSomebody(ChunkedPrefill):
    def compose(self, batch: Batch, now: float) -> None:
        assert [*batch.running, *batch.waiting]
        super().compose(batch, now)


def test_a_failing_check_is_an_assertion_that_fails() -> None:
    with pytest.raises(Nonconformance, match="Idles does not conform") as failure:
        check_conformance(faulty.Idles)
    assert isinstance(failure.value, AssertionError)


# -- a step in brief ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "nothing; r1 ended",
        "r1 r2 +1",
        "r0 +16 (admitted), r1 r2 +1, r3 +1 (admitted with 32 cached); preempts r4 r5; r6 ended",
    ],
)
def test_a_step_in_brief_reads_back(text: str) -> None:
    assert str(StepBrief.parse(text)) == text


@pytest.mark.parametrize("text", ["", "r1", "r1 +", "r1 +1; r2 went", "r1 +x", "+1"])
def test_what_is_no_step_in_brief_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is n"):
        StepBrief.parse(text)


@pytest.mark.parametrize(
    ("now", "then", "said"),
    [
        ("r1 +3", "r1 +5", "r1 gets 3 tokens, 2 fewer than before (5)"),
        ("r1 +1", "r1 +1, r2 +1", "r2 gets no tokens, 1 fewer than before (1)"),
        ("r1 +1, r2 +1", "r2 +1, r1 +1", "the batch is in the order r1 r2, before r2 r1"),
        ("r1 +4 (admitted with 2 cached)", "r1 +4 (admitted)", "r1 finds 2 tokens cached, before 0"),
        ("r1 +1 (admitted)", "r1 +1", "r1 is admitted, before it is not"),
        ("r1 +1", "r1 +1; preempts r2", "r2 is not preempted, before it is"),
        ("r1 +1; r2 ended", "r1 +1", "r2 has ended, before it has not"),
    ],
)
def test_a_difference_between_two_steps_is_told_in_words(now: str, then: str, said: str) -> None:
    assert StepBrief.parse(now).differences(StepBrief.parse(then), "before") == [said]
    assert StepBrief.parse(now).differences(StepBrief.parse(now), "before") == []
