"""`experiment=conformance`: does a policy keep the contract?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiments.composed import Composed
from experiments.policy_under_test import policy_under_test
from experiments.workloads import checks
from schedulers import InputError
from schedulers.conformance import examine


@dataclass(frozen=True, slots=True)
class Question:
    """How many scenarios to play, drawn from which seed; see conf/experiment/conformance.yaml."""

    scenarios: int
    seed: int

    def __post_init__(self) -> None:
        checks.count("question.scenarios", self.scenarios)
        seed: Any = self.seed  # a config may say anything
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise InputError(f"question.seed={seed}: it must be a whole number")


def run_conformance(composed: Composed) -> None:
    """`experiment=conformance`: examine the policy, say what came of it, and fail if it breaks a rule.

    Raises:
        SystemExit: with status 1, if it does.
    """
    question = composed.question(Question)
    _, policy = policy_under_test(composed, "conformance")
    examination = examine(policy, scenarios=question.scenarios, seed=question.seed)
    print(examination)
    if examination.violation is not None:
        raise SystemExit(1)
