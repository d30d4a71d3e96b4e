"""What came of examining a policy, in words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from schedulers.conformance.play import Policy
from schedulers.conformance.rules import BrokenRule, Rule
from schedulers.conformance.scenario import Scenario
from schedulers.conformance.world import ONE_MORE

#: Steps that a report shows, the last ones.
_STEPS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a policy breaks.

    Attributes:
        scenario: the smallest found that breaks it.
        broken: the rule, what happened, and what the steps decided until then.
    """

    scenario: Scenario
    broken: BrokenRule


@dataclass(frozen=True, slots=True)
class Examination:
    """What came of examining a policy; as text, the report.

    Attributes:
        policy: what was examined.
        seed: of the scenarios.
        num_scenarios: of those drawn, how many were played to their end.
        num_steps: in them.
        num_refused: how many scenarios have limits that the policy refuses.
        violation: None: the policy conforms.
        unchecked: why decisions were not compared with those under another hash seed; empty: they were.
    """

    policy: Policy
    seed: int
    num_scenarios: int
    num_steps: int
    num_refused: int = 0
    violation: Violation | None = None
    unchecked: str = ""

    def __str__(self) -> str:
        name = name_of(self.policy)
        note = f"\nNot compared with its decisions under another hash seed: {self.unchecked}" if self.unchecked else ""
        if self.violation is not None:
            return f"{name} does not conform.\n\n{describe(self.policy, self.violation)}{note}"
        refused = f"; {self.num_refused} with limits that it refuses were left out" if self.num_refused else ""
        return (
            f"{name} conforms: {len(Rule)} rules hold in {self.num_scenarios:,} scenarios of {self.num_steps:,} steps "
            f"(seed {self.seed}){refused}{note}"
        )


def describe(policy: Policy, violation: Violation) -> str:
    """The broken rule in a sentence, the smallest case, what was decided in it, and Python that makes it happen."""
    scenario, broken = violation.scenario, violation.broken
    steps = [f"step {number}: {brief}" for number, brief in enumerate(broken.briefs, 1)] or ["nothing yet"]
    if len(steps) > _STEPS_SHOWN:
        steps = [f"... {len(steps) - _STEPS_SHOWN} steps", *steps[-_STEPS_SHOWN:]]
    further = f" ({ONE_MORE} comes after all others)" if any(ONE_MORE in step for step in steps) else ""
    when = f"step {len(broken.briefs)}: " if broken.briefs and broken.rule is not Rule.ANSWERS else ""
    return "\n\n".join(
        [
            f"The rule: {broken.rule.value}.\nIt breaks: {when}{broken.what}.",
            f"The smallest case found:\n\n{_indented(str(scenario))}",
            f"What is decided{further}:\n\n{_indented(chr(10).join(steps))}",
            f"To see it happen:\n\n{_indented(_python(policy, scenario))}",
        ]
    )


def name_of(policy: Policy) -> str:
    """A policy's name, with its parameters."""
    if isinstance(policy, partial):
        return " ".join([name_of(policy.func), *(f"{key}={value!r}" for key, value in policy.keywords.items())])
    return str(getattr(policy, "__name__", policy))


def _python(policy: Policy, scenario: Scenario) -> str:
    """A program that plays `scenario` under `policy`."""
    made = policy.func if isinstance(policy, partial) else policy
    module, name = getattr(made, "__module__", "?"), getattr(made, "__qualname__", "?")
    expression = name
    imports = [
        f"from schedulers import {'SLO, ' if any(job.slo for job in scenario.jobs) else ''}Limits",
        "from schedulers.conformance import Job, Scenario, examine_scenario",
        f"from {module} import {name.partition('.')[0]}",
    ]
    if isinstance(policy, partial):
        imports.insert(0, "from functools import partial\n")
        expression = f"partial({', '.join([name, *(f'{key}={value!r}' for key, value in policy.keywords.items())])})"
    jobs = "".join(f"    {job!r},\n" for job in scenario.jobs)
    return "\n".join(
        [
            *imports,
            "",
            f"limits = {scenario.limits!r}",
            f"jobs = (\n{jobs})",
            f"examine_scenario({expression}, Scenario(limits, jobs, seed={scenario.seed}))",
        ]
    )


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())
