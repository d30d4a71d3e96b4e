"""What a report warns of."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.report.caveats import caveats
from experiments.report.description import RunDescription
from experiments.report.study import Point, Study


def said(warnings: dict[str, list[list[str]]]) -> list[str]:
    """The caveats of a sweep whose runs, by scheduler, warn of this."""
    points = [
        Point(Path(f"{scheduler}{seed}"), {"scheduler": scheduler, "rate": 1.0, "seed": seed}, {"warnings": of_run})
        for scheduler, runs in warnings.items()
        for seed, of_run in enumerate(runs)
    ]
    return caveats(Study(points), RunDescription())


def test_warnings_that_differ_only_in_their_numbers_are_one_and_the_worst_is_quoted() -> None:
    text = "aiconfigurator: {} steps were beyond 16,384 tokens; the largest had {}, {} times that."
    runs = [
        [text.format("36", "32,700", "2.0")],
        [text.format("1,042", "17,000", "1.0")],
        [text.format("99", "9", "9")],
    ]
    assert said({"static": runs, "fcfs": [[], [], []]}) == [
        f"{text.format('1,042', '17,000', '1.0')} (3 of 6 runs, all of static; this is the worst)"
    ]


def test_a_warning_of_every_series_names_none() -> None:
    assert said({"a": [["mind the gap"], []], "b": [["mind the gap", "mind the gap"], []]}) == [
        "mind the gap (2 of 4 runs)"
    ]


def test_a_number_within_a_name_keeps_warnings_apart() -> None:
    warnings = ["the profile is of llama-3.1-8b", "the profile is of llama-3.1-70b", "took 1.5x", "took 2.5x"]
    assert len(said({"a": [[warning] for warning in warnings]})) == len(warnings)


@pytest.mark.parametrize("differs", [True, False])
def test_seeds_that_change_nothing_are_said_to_mean_nothing(differs: bool) -> None:
    points = [
        Point(Path(str(seed)), {"scheduler": "fcfs", "rate": 1.0, "seed": seed}, {"steps": seed if differs else 3})
        for seed in range(3)
    ]
    warned = caveats(Study(points), RunDescription())
    assert [warning.startswith("All seeds gave the same runs") for warning in warned] == ([] if differs else [True])
