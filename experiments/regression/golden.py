"""A golden file: what a policy decided in one workload, step by step, and the metrics that came of it.

It is text to be read, and to be read in a diff; steps that decide the same share a line:

    policy fcfs
    workload bursts 0f3a9c21
    step 1: r0 r1 +32 (admitted)
    steps 2-9: r0 r1 +1
    ttft_s.p99 0.01824 within 1 %

The tolerance of a metric may be edited, and is kept when the file is written anew. Lines that begin with # say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from schedulers.brief import StepBrief

#: A share of the golden's value.
TOLERANCE = 0.01

_STEPS = re.compile(r"steps? (?P<first>\d+)(?:-(?P<last>\d+))?: (?P<brief>.+)")
_METRIC = re.compile(r"(?P<name>[\w.]+) (?P<value>\S+)(?: within (?P<percent>[\d.]+) %)?")


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a run, None where it does not exist, and by what share of it another run's may differ."""

    value: float | None
    tolerance: float = TOLERANCE

    def __str__(self) -> str:
        return f"{told(self.value)} within {100 * self.tolerance:g} %"

    def allows(self, other: float | None) -> bool:
        """Whether `other` is within the tolerance; both are compared as they are written."""
        if self.value is None or other is None:
            return self.value is other
        return abs(float(told(other)) - self.value) <= self.tolerance * abs(self.value)


@dataclass(frozen=True, slots=True)
class Golden:
    """What a golden file holds.

    Attributes:
        policy: its label.
        workload: its name and the digest of its content.
        steps: what each step decided.
    """

    policy: str
    workload: str
    steps: Sequence[StepBrief]
    metrics: dict[str, Metric]

    def __str__(self) -> str:
        metrics = [f"{name} {metric}" for name, metric in self.metrics.items()]
        about = (
            "# What a policy decided in a fixed workload (tokens for whom, in batch order), and what came of it.",
            "# `experiment=regression` compares with it; with question.update=true it writes it anew.",
        )
        return "\n".join(
            [*about, f"policy {self.policy}", f"workload {self.workload}", *_lines(self.steps), *metrics, ""]
        )

    @classmethod
    def parse(cls, text: str) -> Golden:
        """A golden from its text.

        Raises:
            ValueError: it is none; the message names the line.
        """
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line and line[0] != "#"]
        heads = dict(line.partition(" ")[::2] for _, line in lines[:2])
        if heads.keys() != {"policy", "workload"}:
            raise ValueError("it does not begin with a line 'policy ...' and a line 'workload ...'")
        steps: list[StepBrief] = []
        metrics: dict[str, Metric] = {}
        for number, line in lines[2:]:
            try:
                if found := _STEPS.fullmatch(line):
                    first, last = int(found["first"]), int(found["last"] or found["first"])
                    if first != len(steps) + 1 or last < first:
                        raise ValueError(f"step {len(steps) + 1} should come here")  # noqa: TRY301 - named with its line below
                    steps += [StepBrief.parse(found["brief"])] * (last - first + 1)
                elif found := _METRIC.fullmatch(line):
                    value = None if found["value"] == "none" else float(found["value"])
                    metrics[found["name"]] = Metric(value, float(found["percent"] or 0) / 100)
                else:
                    raise ValueError("it is neither a step nor a metric")  # noqa: TRY301 - likewise
            except ValueError as error:
                raise ValueError(f"line {number}, {line!r}: {error}") from error
        if not steps or not metrics:
            raise ValueError("it holds no steps or no metrics: is its end missing?")
        return cls(heads["policy"], heads["workload"], steps, metrics)


def told(value: float | None) -> str:
    """A figure as a golden file writes it: six significant digits."""
    return "none" if value is None else f"{value:.6g}"


def _lines(steps: Sequence[StepBrief]) -> Iterator[str]:
    first = 1
    for brief, same in groupby(map(str, steps)):
        last = first + sum(1 for _ in same) - 1
        yield f"step {first}: {brief}" if last == first else f"steps {first}-{last}: {brief}"
        first = last + 1
