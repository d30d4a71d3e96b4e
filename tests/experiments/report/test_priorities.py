"""What a report tells of requests that are more urgent than others."""

from __future__ import annotations

from pathlib import Path

from experiments.report import Point, RunDescription, write_report, write_run_page
from experiments.report.priorities import priority_chart
from experiments.report.study import Study
from experiments.storage import write_run
from experiments.summary import summarize
from schedulers.request import SLO
from tests.experiments.synthetic import toy_run


def point(scheduler: str, rate: float, tails: dict[str, float | None], seed: int = 0) -> Point:
    """A run with these P99 of TTFT by priority."""
    classes = {priority: {"ttft_s": {"p50": tail, "p99": tail}} for priority, tail in tails.items()}
    return Point(Path("nowhere"), {"scheduler": scheduler, "rate": rate, "seed": seed}, {"by_priority": classes})


def test_there_are_panels_for_each_priority_in_the_order_of_their_numbers() -> None:
    study = Study([point("a", rate, {"10": 1.0, "2": 1.0, "-1": 1.0}) for rate in (1, 2)])
    assert [panel.title for panel in priority_chart(study).panels][:3] == [
        "TTFT P50, priority -1 (most urgent)",
        "TTFT P50, priority 2",
        "TTFT P50, priority 10 (least urgent)",
    ]


def test_the_caption_says_where_the_gap_is_widest() -> None:
    points = [point("a", 1, {"0": 0.1, "1": 0.1}), point("a", 2, {"0": 0.2, "1": 0.21})]
    points += [point("b", 1, {"0": 0.1, "1": 0.1}), point("b", 2, {"0": 0.2, "1": 1.5})]
    assert "widest with b at 2 requests/s: P99 200 ms for priority 0 and 1.5 s for priority 1." in caption(points)


def test_a_gap_that_not_every_seed_shows_is_not_claimed() -> None:
    points = [point("a", 1, {"0": 0.1, "1": tail}, seed) for seed, tail in enumerate((0.9, 0.1, 0.9))]
    assert "next to nothing to see here: at 1 request/s" in caption(points)


def test_priorities_without_a_completed_request_are_no_reason_to_fail() -> None:
    assert "next to nothing to see here" in caption([point("a", 1, {"0": 0.1, "1": None})])


def test_reports_show_priorities_where_there_are_several_and_only_there(tmp_path: Path) -> None:
    for num_priorities in (1, 2):
        folder = tmp_path / str(num_priorities)
        steps, requests = toy_run(num_requests=40)
        requests = [request._replace(priority=i % num_priorities) for i, request in enumerate(requests)]
        summary = summarize(steps, requests, SLO(1.0))
        write_run(folder / "run", "", steps, requests, summary)
        points = [Point(folder / "run", {"scheduler": "a", "rate": rate, "seed": 0}, summary) for rate in (1.0, 2.0)]
        several = num_priorities > 1
        assert ("Latency by urgency" in write_report(folder, points, "Sweep", RunDescription()).read_text()) == several
        assert (folder / "figures" / "priorities.png").exists() == several
        assert ("By priority" in write_run_page(folder / "run").read_text()) == several


def caption(points: list[Point]) -> str:
    return priority_chart(Study(points)).caption
