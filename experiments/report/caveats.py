"""What a reader of a sweep must know before trusting its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from experiments.report.description import RunDescription
from experiments.report.study import Point, Study
from experiments.report.verdict import enumerate_labels

#: A number that stands alone in a sentence; in "llama-3.1-8b" there is none.
NUMBER = re.compile(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w-]|[.,]\d)")


def caveats(study: Study, description: RunDescription) -> list[str]:
    """The warnings of the sweep and of its runs, and what is absent, a sentence or two each."""
    failed = [f"Failed: {label}: {reason}" for label, reason in description.failed.items()]
    missing = study.missing()
    absent = [f"Not in this report, for the runs have not finished: {'; '.join(missing)}"] if missing else []
    return [*description.warnings, *_of_runs(study), *_of_seeds(study), *failed, *absent]


def _of_seeds(study: Study) -> list[str]:
    """Whether seeds that should differ do not: then the intervals over them are of no width, and mean nothing."""
    cells = [study.at(series, rate) for series in study.series for rate in study.rates]
    repeated = [[point.summary for point in points] for points in cells if len(points) > 1]
    if not repeated or any(summary != summaries[0] for summaries in repeated for summary in summaries):
        return []
    no_width = "All seeds gave the same runs, so the confidence intervals over them have no width and say nothing."
    return [f"{no_width} A trace is sent as it was recorded, whatever the seed, unless workload.reseed=true."]


def _of_runs(study: Study) -> list[str]:
    """The summaries' "warnings"; those that differ only in their numbers are one."""
    alike: dict[str, list[tuple[str, Point]]] = {}
    for point in study.points:
        for warning in point.summary.get("warnings", ()):
            alike.setdefault(NUMBER.sub("#", warning), []).append((warning, point))
    return [_worst(study, said) for said in alike.values()]


def _worst(study: Study, said: Sequence[tuple[str, Point]]) -> str:
    """The warning with the largest numbers, compared from the first to the last, and who says the like."""
    labels = list(dict.fromkeys(study.label(point) for _, point in said))
    who = f"{len({point.folder for _, point in said})} of {len(study.points)} runs"
    if len(labels) < len(study.series):
        who += f", all of {enumerate_labels(labels)}"
    if len({warning for warning, _ in said}) > 1:
        who += "; this is the worst"
    return f"{max((warning for warning, _ in said), key=_numbers)} ({who})"


def _numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]
