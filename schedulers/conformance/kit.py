"""The whole examination of a policy: many scenarios, every rule, and the smallest scenario that breaks one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import zip_longest

from schedulers.brief import StepBrief
from schedulers.conformance.elsewhere import Elsewhere, briefs_of
from schedulers.conformance.play import Loops, Policy, play
from schedulers.conformance.report import Examination, Violation
from schedulers.conformance.rules import BrokenRule, Rule
from schedulers.conformance.scenario import Scenario, draw
from schedulers.conformance.shrink import shrink
from schedulers.errors import InputError

#: Scenarios tried on the way to the smallest one, and how often a policy that loops is waited for meanwhile.
_MAX_TRIES, _MAX_LOOPS = 5000, 12


class Nonconformance(AssertionError):
    """A policy does not conform; the message is the whole report."""


def conformance(policy: Policy, *, scenarios: int = 200, seed: int = 0) -> Callable[[], None]:
    """Make a test of a policy, for pytest to find; see `examine` for what it does."""

    def test_conforms() -> None:
        __tracebackhide__ = True  # pytest then shows the report alone
        check_conformance(policy, scenarios=scenarios, seed=seed)

    return test_conforms


def check_conformance(policy: Policy, *, scenarios: int = 200, seed: int = 0) -> None:
    """Examine a policy (see `examine`), for use inside a test.

    Raises:
        Nonconformance: it does not conform; the message is the report.
    """
    __tracebackhide__ = True
    examination = examine(policy, scenarios=scenarios, seed=seed)
    if examination.violation is not None:
        raise Nonconformance(str(examination))


def examine(policy: Policy, *, scenarios: int = 200, seed: int = 0) -> Examination:
    """Play drawn scenarios under `policy`, each three times, and check every rule at every call.

    The second time must decide the same in the same process; the third in one whose strings hash differently. The
    first scenario that breaks a rule is made as small as can be, and ends the examination.

    Args:
        policy: a class, or a `functools.partial` of one with its parameters.
        scenarios: how many; some milliseconds each.
        seed: of the drawing. The same seed draws the same scenarios everywhere.

    Raises:
        InputError: the policy refuses the limits of every scenario, in its words.
    """
    num_steps, refusals = 0, []
    with ExitStack() as stack:
        elsewhere, unchecked = None, ""
        try:
            elsewhere = stack.enter_context(Elsewhere(policy))
        except InputError as error:
            unchecked = str(error)
        for number in range(scenarios):
            scenario = draw(seed, number)
            try:
                num_steps += examine_scenario(policy, scenario, elsewhere)
            except InputError as error:
                refusals.append(error)
            except BrokenRule as broken:
                violation = _smallest(policy, scenario, broken, elsewhere)
                num_played = number - len(refusals)
                return Examination(policy, seed, num_played, num_steps, len(refusals), violation, unchecked)
    if len(refusals) == scenarios:
        raise refusals[0]
    return Examination(policy, seed, scenarios - len(refusals), num_steps, len(refusals), None, unchecked)


def examine_scenario(policy: Policy, scenario: Scenario, elsewhere: Elsewhere | None = None) -> int:
    """Play one scenario under `policy` twice, and once more `elsewhere`; return the number of its steps.

    Raises:
        BrokenRule: the first rule that did not hold.
        InputError: the policy refuses the limits.
    """
    world = play(policy, scenario)  # it lives on while the next is played, so that no two objects have the same id()
    briefs = [str(brief) for brief in world.briefs]
    _compare(briefs, briefs_of(policy, scenario), "a second time")
    if elsewhere is not None:
        _compare(briefs, elsewhere.briefs(scenario), "in a process whose strings hash differently")
    return len(briefs)


def _compare(first: Sequence[str], again: Sequence[str], how: str) -> None:
    for number, (then, now) in enumerate(zip_longest(first, again, fillvalue="no such step"), 1):
        if then == now:
            continue
        try:
            said = "; ".join(StepBrief.parse(now).differences(StepBrief.parse(then), "the first time"))
        except ValueError:  # one of the two ended, or broke a rule
            said = f"{now}; the first time {then}"
        broken = BrokenRule(Rule.REPEATABLE, f"played {how}, step {number} is another: {said}")
        broken.briefs = first[:number]
        raise broken


def _smallest(policy: Policy, scenario: Scenario, broken: BrokenRule, elsewhere: Elsewhere | None) -> Violation:
    """The smallest scenario that breaks the same rule in the same way."""
    by_chance = broken.rule is Rule.REPEATABLE
    num_loops = 0

    def still_breaks(candidate: Scenario) -> bool:
        nonlocal broken, num_loops
        if num_loops == _MAX_LOOPS:
            return False
        for _ in range(3 if by_chance else 1):
            try:
                if by_chance:
                    examine_scenario(policy, candidate, elsewhere)
                else:
                    play(policy, candidate)
            except InputError:
                return False
            except BrokenRule as error:
                num_loops += isinstance(error.__cause__, Loops)
                if error.kind == broken.kind:
                    broken = error
                    return True
        return False

    smallest = shrink(scenario, still_breaks, _MAX_TRIES)
    return Violation(smallest, broken)
