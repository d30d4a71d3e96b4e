"""What a step decided, in one line that a person can read, and that can be read back and compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from schedulers.decisions import StepDecisions
from schedulers.step import NewRequest, ResumedRequest, SchedulerOutput

_NOTHING = "nothing"
_SCHEDULED = re.compile(r"(?P<names>.+) \+(?P<tokens>\d+)(?P<admitted> \(admitted(?: with (?P<cached>\d+) cached)?\))?")


class StepBrief(NamedTuple):
    """The decisions of a step, without the blocks that they took.

    As text: `r3 +256 (admitted with 16 cached), r1 r2 +1; preempts r4; r0 ended`. Ids must hold neither spaces nor
    commas nor semicolons.
    """

    #: Tokens to compute for each request, in batch order.
    num_scheduled_tokens: Mapping[str, int]
    #: Requests that start or come back, each with the tokens that the prefix cache holds of it.
    num_cached_tokens: Mapping[str, int]
    preempted_ids: Sequence[str]
    #: Requests that ended since the last step.
    finished_ids: Sequence[str]

    @classmethod
    def of(cls, step: SchedulerOutput | StepDecisions) -> StepBrief:
        """The brief of a decided step."""
        if isinstance(step, StepDecisions):
            cached = {name: admission.num_cached_tokens for name, admission in step.admissions.items()}
        else:
            admitted: list[NewRequest | ResumedRequest] = [*step.new_requests, *step.resumed_requests]
            cached = {request.request_id: request.num_computed_tokens for request in admitted}
        return cls(dict(step.num_scheduled_tokens), cached, list(step.preempted_ids), list(step.finished_ids))

    @classmethod
    def parse(cls, text: str) -> StepBrief:
        """A brief from its text.

        Raises:
            ValueError: it is none; the message names the part that cannot be read.
        """
        batch, *parts = text.split("; ")
        scheduled: dict[str, int] = {}
        cached: dict[str, int] = {}
        preempted: list[str] = []
        finished: list[str] = []
        for part in batch.split(", ") if batch != _NOTHING else ():
            if not (found := _SCHEDULED.fullmatch(part)):
                raise ValueError(f"{part!r} is not like 'r1 r2 +16'")
            names = found["names"].split(" ")
            scheduled.update(dict.fromkeys(names, int(found["tokens"])))
            if found["admitted"]:
                cached.update(dict.fromkeys(names, int(found["cached"] or 0)))
        for part in parts:
            if part.startswith("preempts "):
                preempted.extend(part.removeprefix("preempts ").split(" "))
            elif part.endswith(" ended"):
                finished.extend(part.removesuffix(" ended").split(" "))
            else:
                raise ValueError(f"{part!r} is neither like 'preempts r1' nor like 'r1 ended'")
        return cls(scheduled, cached, preempted, finished)

    def __str__(self) -> str:
        items = ((name, self._given(name)) for name in self.num_scheduled_tokens)
        groups = groupby(items, key=lambda item: item[1])
        parts = [", ".join(" ".join([*(name for name, _ in group), given]) for given, group in groups) or _NOTHING]
        if self.preempted_ids:
            parts.append(f"preempts {' '.join(self.preempted_ids)}")
        if self.finished_ids:
            parts.append(f"{' '.join(self.finished_ids)} ended")
        return "; ".join(parts)

    def _given(self, name: str) -> str:
        """What a request gets, such as `+16 (admitted)`."""
        cached = self.num_cached_tokens.get(name)
        admitted = "" if cached is None else f" (admitted with {cached} cached)" if cached else " (admitted)"
        return f"+{self.num_scheduled_tokens[name]}{admitted}"

    def differences(self, other: StepBrief, there: str) -> list[str]:
        """How this step differs from `other`, one sentence each; `there` says where that was: "in the golden"."""
        mine, others = self.num_scheduled_tokens, other.num_scheduled_tokens
        said = []
        for name in dict.fromkeys([*mine, *others]):
            tokens, before = mine.get(name, 0), others.get(name, 0)
            if tokens != before:
                how = "more" if tokens > before else "fewer"
                said.append(f"{name} gets {_tokens(tokens)}, {abs(tokens - before)} {how} than {there} ({before})")
        for name in dict.fromkeys([*self.num_cached_tokens, *other.num_cached_tokens]):
            cached, before_cached = self.num_cached_tokens.get(name), other.num_cached_tokens.get(name)
            if cached is not None and before_cached is not None and cached != before_cached:
                said.append(f"{name} finds {_tokens(cached)} cached, {there} {before_cached}")
        said += _only(self.num_cached_tokens, other.num_cached_tokens, "is admitted", there)
        said += _only(self.preempted_ids, other.preempted_ids, "is preempted", there)
        said += _only(self.finished_ids, other.finished_ids, "has ended", there)
        if not said and list(mine) != list(others):
            said.append(f"the batch is in the order {' '.join(mine)}, {there} {' '.join(others)}")
        return said


def _only(
    mine: Mapping[str, int] | Sequence[str], others: Mapping[str, int] | Sequence[str], what: str, there: str
) -> list[str]:
    """Who is in one of the two alone."""
    verb, participle = what.split(" ", 1)
    return [
        *(f"{name} {what}, {there} it {verb} not" for name in mine if name not in others),
        *(f"{name} {verb} not {participle}, {there} it {verb}" for name in others if name not in mine),
    ]


def _tokens(count: int) -> str:
    return {0: "no tokens", 1: "1 token"}.get(count, f"{count} tokens")
