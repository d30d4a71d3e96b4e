"""How the points of a sweep are grouped, and what is concluded from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.report.study import Estimate, Point, Study
from experiments.report.verdict import headline, verdict
from schedulers.errors import InputError


def point(scheduler: str, rate: float | None, share: float | None = None, seed: int = 0, **more: Any) -> Point:
    summary = {
        "ttft_s": {"p99": more.pop("p99", 0.5)},
        "tpot_s": {"p99": 0.05},
        "goodput": {"share": share, "slo": {"ttft_s": 1.0 if share is not None else None, "tpot_s": None}},
    }
    return Point(Path("nowhere"), {"scheduler": scheduler, "rate": rate, "seed": seed, **more}, summary)


def test_an_interval_is_that_of_students_t() -> None:
    estimate = Estimate.of([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.half_width == pytest.approx(4.303 / 3**0.5)  # t for 2 degrees of freedom, s = 1


@pytest.mark.parametrize(
    ("count", "t"), [(2, 12.706), (17, 2.120), (18, 2.110), (21, 2.086), (61, 2.000), (121, 1.980)]
)
def test_the_quantile_of_t_is_right_within_and_beyond_the_table(count: int, t: float) -> None:
    values = [float(i % 2) for i in range(count)]
    mean = sum(values) / count
    deviation = (sum((value - mean) ** 2 for value in values) / (count - 1)) ** 0.5
    assert Estimate.of(values).half_width == pytest.approx(t * deviation / count**0.5, rel=5e-4)


def test_a_single_seed_has_no_interval() -> None:
    assert Estimate.of([3.0]) == Estimate(3.0, None, 1, 3.0)


def test_an_axis_that_varies_is_part_of_the_label_and_one_that_does_not_is_not() -> None:
    study = Study([point("fcfs", 1, model="m", cost="a"), point("fcfs", 1, model="m", cost="b")])
    assert [series.label for series in study.series] == ["fcfs, cost=a", "fcfs, cost=b"]


def test_a_scheduler_keeps_its_colour_and_marker_whatever_else_varies() -> None:
    study = Study([point(name, 1, cost=cost) for cost in ("a", "b") for name in ("fcfs", "static")])
    looks = {series.label: series.look for series in study.series}
    assert looks["fcfs, cost=a"].color == looks["fcfs, cost=b"].color != looks["static, cost=a"].color
    assert looks["fcfs, cost=a"].dash != looks["fcfs, cost=b"].dash


def test_with_one_scheduler_colours_tell_what_else_varies() -> None:
    study = Study([point("fcfs", 1, cost=cost) for cost in ("a", "b", "c")])
    assert len({series.look.color for series in study.series}) == 3


def test_many_schedulers_never_share_colour_and_marker() -> None:
    study = Study([point(f"policy{i}", 1) for i in range(50)])
    assert len({(series.look.color, series.look.marker) for series in study.series}) == 50


def test_rates_are_in_order_as_numbers() -> None:
    assert Study([point("fcfs", rate) for rate in (10, 2, 9.5, None)]).rates == (None, 2, 9.5, 10)


def test_a_rate_is_sustained_only_if_all_lower_ones_are() -> None:
    study = Study([point("fcfs", 1, 1.0), point("fcfs", 2, 0.5), point("fcfs", 4, 1.0)])
    assert study.sustained_rate(study.series[0]) == 1


def test_the_close_look_is_where_half_of_the_series_fall_behind() -> None:
    shares = {"a": (1.0, 1.0, 1.0), "b": (1.0, 1.0, 0.2), "c": (1.0, 0.5, 0.1), "d": (0.3, 0.2, 0.1)}
    points = [
        point(name, rate, share) for name, row in shares.items() for rate, share in zip((1, 2, 4), row, strict=True)
    ]
    assert Study(points).knee == 2
    assert Study(points[:3]).knee == 4


def test_without_an_slo_falling_behind_is_five_times_the_tail_at_the_lowest_rate() -> None:
    tails = ((1, 0.1), (2, 0.4), (4, 0.6), (8, 9.0))
    assert Study([point("fcfs", rate, p99=p99) for rate, p99 in tails]).knee == 4


def test_missing_points_are_named() -> None:
    study = Study([point("a", 1), point("a", 1, seed=1), point("a", 2), point("b", 1), point("b", 1, seed=1)])
    assert study.missing() == ["a at 2 requests/s, seed 1", "b at 2 requests/s"]


def test_the_headline_names_the_scheduler_that_sustains_most() -> None:
    points = [point("a", 1, 1.0), point("a", 2, 0.95), point("a", 4, 0.5), point("b", 1, 1.0), point("b", 2, 0.2)]
    study = Study(points)
    assert headline(study) == (
        "a sustains the highest rate, 2 requests/s, with at least 90 % of requests within the SLO (TTFT ≤ 1 s)."
    )
    assert verdict(study, study.series[1]).startswith("sustains up to 1 request/s; at 2 requests/s: P99 TTFT 500 ms")


@pytest.mark.parametrize(
    ("points", "said"),
    [
        (
            [point("a", 1, 0.1), point("a", 2, 0.1)],
            "a does not sustain even the lowest rate that was tried, 1 request/s, with at least 90 % of requests",
        ),
        (
            [point(name, rate, 0.1) for name in "ab" for rate in (1, 2)],
            "No scheduler sustains even the lowest rate that was tried, 1 request/s, with at least 90 % of requests",
        ),
        (
            [point("a", rate, 0.1, cost=cost) for cost in "xy" for rate in (1, 2)],
            "No variant sustains even the lowest rate",
        ),
        (
            [point("a", 1, 1.0), point("a", 2, 1.0)],
            "a sustains up to 2 requests/s (the highest that was tried: it may sustain more), with",
        ),
        ([point("a", 1, 1.0), point("a", 2, 0.1)], "a sustains up to 1 request/s, with at least 90 %"),
        (
            [point(name, rate, 1.0 if rate == 1 else 0.1) for name in "ab" for rate in (1, 2)],
            "a and b sustain up to 1 request/s, with at least 90 %",
        ),
        (
            [point(name, rate, 1.0) for name in "abcd" for rate in (1, 2)],
            "4 of 4 schedulers sustain up to 2 requests/s (the highest that was tried: they may sustain more), with",
        ),
        (
            [point(name, rate, 1.0 if rate == 1 or name != "c" else 0.1) for name in "abc" for rate in (1, 2)],
            "a and b sustain the highest rate, 2 requests/s (the highest that was tried: they may sustain more), with",
        ),
        (
            [point("a", 2, 1.0), point("b", 2, 0.1)],
            "At 2 requests/s, a keeps at least 90 % of requests within the SLO (TTFT ≤ 1 s).",
        ),
        ([point("a", 2, 1.0), point("b", 2, 1.0)], "At 2 requests/s, a and b keep at least 90 %"),
        ([point("a", 2, 0.1), point("b", 2, 0.1)], "At 2 requests/s, no scheduler keeps at least 90 %"),
        ([point("a", None, 0.1)], "At the workload's own pace, a does not keep at least 90 %"),
        (
            [point("a", None), point("b", None, p99=0.2)],
            "No SLO was set. At the workload's own pace, b has the lowest P99 TTFT: 200 ms.",
        ),
        ([point("a", 1, p99=2.0)], "No SLO was set. At 1 request/s, the P99 TTFT of a is 2 s."),
        ([point("a", 1, p99=None)], "No SLO was set, and no request completed."),
    ],
)
def test_the_headline_fits_what_was_found(points: list[Point], said: str) -> None:
    assert said in headline(Study(points))


def test_a_report_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to report"):
        Study([])
