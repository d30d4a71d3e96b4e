"""What every policy must keep, each in a sentence, and the error for a policy that does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from schedulers.errors import SchedulerError


class Rule(Enum):
    """The invariants of a scheduler; the value is the sentence that a report says."""

    ANSWERS = "a policy answers every call, soon, and asks only for what a step can do"
    BUDGET = "a step never computes more tokens than the token budget"
    SLOTS = "no more requests hold a slot than the sequence limit allows"
    BLOCKS = "every block is free, cached or owned, and whoever computes owns the blocks for it"
    BATCH = "a step computes tokens that its requests have, of live requests, of each once"
    SAMPLING = "whoever computes its last known token samples the next one, and nobody else does"
    PROGRESS = "while requests are live, every step computes at least one token"
    STARVATION = "every request of a finite workload ends"
    REFUSAL = (
        "what can never be served, or lacks a prediction or target that the policy goes by, is refused on arrival, "
        "changing nothing; all else is accepted"
    )
    PREEMPTION = "only a running request is preempted, once, and it owns no block until it comes back"
    TOKENS = "no token is lost, doubled or reordered, whatever is preempted or found in the cache"
    ENDING = "whoever ends or is cancelled, at any time, owns nothing any more, and workers are told"
    STATE = "what a client asked for never changes, and a request's progress agrees with what happened"
    REPEATABLE = "the same inputs give the same decisions"


class BrokenRule(SchedulerError):
    """A policy broke a rule; the message says which, and what happened.

    Attributes:
        rule: which.
        what: what happened, in a sentence.
        briefs: what the steps decided until then, if they were played.
    """

    def __init__(self, rule: Rule, what: str) -> None:
        super().__init__(rule, what)
        self.rule = rule
        self.what = what
        self.briefs: Sequence[str] = ()

    @property
    def kind(self) -> tuple[Rule, str]:
        """What two breaches of the same kind have in common: the rule, and what the policy asked for in vain."""
        return self.rule, re.sub(r"<[^>]*>|'[^']*'|\d+", "", self.what) if self.rule is Rule.ANSWERS else ""

    def __str__(self) -> str:
        return f"{self.what}; but {self.rule.value}"
