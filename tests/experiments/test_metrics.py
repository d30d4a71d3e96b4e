"""What the numbers of a run mean."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from experiments.columns import RequestColumns, StepColumns, offsets
from experiments.metrics import histogram_edges, itl_s, meets_slo, token_histogram, tpot_s, ttft_s
from experiments.summary import summarize
from schedulers.records import RequestRecord, StepRecord
from schedulers.request import SLO
from tests.experiments.synthetic import toy_run


def request(
    arrival: float,
    tokens: tuple[float, ...],
    *,
    reason: str = "stop",
    slo: SLO | None = None,
    scheduled: float | None = 0.0,
) -> RequestRecord:
    finish = tokens[-1] if tokens else arrival + 1
    slo = slo or SLO()
    return RequestRecord(
        "r", arrival, scheduled, finish, tokens, reason, 100, len(tokens), 25, 0, 0, "", "", slo.ttft_s, slo.tpot_s
    )


def step(number: int, start: float, end: float, running: int = 1, kv_usage: float = 0.0) -> StepRecord:
    return StepRecord(number, start, end, 0, running, 0, running, 0, kv_usage, 0)


def test_latencies_are_those_of_a_hand_computed_request() -> None:
    summary = summarize([step(1, 1.0, 4.0)], [request(1.0, (2.0, 2.5, 4.0), scheduled=1.25)], None)
    assert summary["ttft_s"]["mean"] == 1.0
    assert summary["e2e_s"]["mean"] == 3.0
    assert summary["tpot_s"]["mean"] == 1.0
    assert summary["queueing_s"]["mean"] == 0.25
    assert (summary["itl_s"]["count"], summary["itl_s"]["mean"], summary["itl_s"]["max"]) == (2, 1.0, 1.5)
    assert summary["throughput"] == pytest.approx(
        {"requests_per_s": 1 / 3, "output_tokens_per_s": 1.0, "total_tokens_per_s": 103 / 3}
    )
    assert summary["prefix_cache_hit_share"] == 0.25


def test_gaps_between_tokens_never_span_two_requests_whatever_lies_between_them() -> None:
    records = [
        request(0, (), reason="abort"),
        request(0, (1.0,)),
        request(0, (1.0, 3.0, 4.0)),
        request(0, (1.0, 9.0), reason="abort"),
        request(0, ()),
        request(0, (5.0, 5.5)),
        request(0, (), reason="abort"),
    ]
    assert itl_s(RequestColumns.of(records)).tolist() == [2.0, 1.0, 0.5]


def test_gaps_agree_with_a_plain_loop() -> None:
    _, requests = toy_run(num_requests=80)
    expected = [
        later - earlier
        for record in requests
        if record.finish_reason != "abort"
        for earlier, later in zip(record.token_times_s, record.token_times_s[1:], strict=False)
    ]
    assert itl_s(RequestColumns.of(requests)).tolist() == expected


def test_a_single_token_has_no_tpot_and_an_aborted_request_no_latency_at_all() -> None:
    columns = RequestColumns.of([request(0, (1.0,)), request(0, (1.0, 2.0), reason="abort"), request(0, (1.0, 2.0))])
    assert np.isnan(tpot_s(columns)).tolist() == [True, True, False]
    assert np.isnan(ttft_s(columns)).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "requests",
    [[], [request(0, (), reason="abort", scheduled=None)], [request(0, (1.0,))], [request(1.0, (1.0,))]],
    ids=["nothing", "only an abort", "one token", "no time at all"],
)
def test_what_does_not_exist_is_null_in_json_and_never_nan(requests: list[RequestRecord]) -> None:
    for steps in ([], [step(1, 0.0, 1.0)], [step(1, 1.0, 1.0)]):
        summary = summarize(steps, requests, SLO(1.0, 0.1))
        text = json.dumps(summary, allow_nan=False)
        assert json.loads(text) == summary
        assert summary["tpot_s"]["p99"] is None


def test_goodput_counts_requests_that_meet_every_target_they_have() -> None:
    records = [
        request(0, (1.0, 1.1)),  # meets both
        request(0, (3.0, 3.1)),  # TTFT too late
        request(0, (1.0, 2.0)),  # TPOT too slow
        request(0, (1.0,)),  # a single token: the TPOT target does not bind
        request(0, (1.0, 1.1), reason="abort"),
    ]
    assert meets_slo(RequestColumns.of(records), SLO(2.0, 0.5)).tolist() == [True, False, False, True, False]  # type: ignore[union-attr]
    goodput = summarize([], records, SLO(2.0, 0.5))["goodput"]
    assert goodput["share"] == 0.4
    assert goodput["requests_per_s"] == pytest.approx(2 / 3.1)


def test_a_requests_own_target_goes_before_the_runs() -> None:
    records = [
        request(0, (1.0, 1.1), slo=SLO(ttft_s=0.5)),
        request(0, (1.0, 1.1), slo=SLO(tpot_s=0.01)),
        request(0, (1.0, 1.1)),
    ]
    columns = RequestColumns.of(records)
    assert meets_slo(columns, SLO(2.0, 0.5)).tolist() == [False, False, True]  # type: ignore[union-attr]
    assert meets_slo(columns, None).tolist() == [False, False, True]  # type: ignore[union-attr]
    assert meets_slo(columns, SLO(ttft_s=0.1)).tolist() == [False, False, False]  # type: ignore[union-attr]


def test_without_any_target_there_is_no_goodput() -> None:
    assert summarize([], [request(0, (1.0,))], None)["goodput"]["share"] is None


def test_with_several_priorities_each_is_summarized_as_all_are() -> None:
    urgent = [request(0, (1.0, 1.1)), request(0, (2.0, 2.1))]
    patient = [request(0, (5.0, 5.1)), request(0, (), reason="abort")]
    records = [*(r._replace(priority=10) for r in patient), *(r._replace(priority=-1) for r in urgent)]
    summary = summarize([], records, SLO(1.5))
    assert list(summary["by_priority"]) == ["-1", "10"]  # by number, most urgent first
    for priority, alone in (("-1", urgent), ("10", patient)):
        found, expected = summary["by_priority"][priority], summarize([], alone, SLO(1.5))
        assert {key: found[key] for key in ("requests", "ttft_s", "tpot_s")} == {
            key: expected[key] for key in ("requests", "ttft_s", "tpot_s")
        }
        assert found["goodput"]["share"] == expected["goodput"]["share"]
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_with_one_priority_there_is_nothing_to_tell_apart() -> None:
    assert "by_priority" not in summarize([], [request(0, (1.0,))._replace(priority=3)], None)


def test_a_long_step_weighs_more_and_idle_time_nothing() -> None:
    steps = [step(1, 0.0, 1.0, kv_usage=0.8), step(2, 1.0, 4.0, kv_usage=0.4), step(3, 100.0, 100.0, kv_usage=1.0)]
    summary = summarize(steps, [], None)
    assert summary["kv_usage"] == {"mean": pytest.approx(0.5), "max": 1.0}


def test_percentiles_agree_with_numpy() -> None:
    steps, requests = toy_run(num_requests=60)
    values = [r.token_times_s[0] - r.arrival_s for r in requests if r.finish_reason != "abort"]
    assert summarize(steps, requests, None)["ttft_s"]["p95"] == pytest.approx(np.percentile(values, 95))


def test_histogram_bins_have_no_holes_and_count_every_step_once() -> None:
    tokens = np.array([0, 0, 1, 3, 4, 5, 6, 511, 512, 513, 767, 768])
    edges, counts = token_histogram(tokens)
    assert edges.tolist()[:9] == [0, 1, 2, 3, 4, 6, 8, 12, 16]
    by_edge = dict(zip(edges.tolist(), counts.tolist(), strict=False))
    assert counts.sum() == len(tokens)
    assert (by_edge[0], by_edge[4], by_edge[384], by_edge[512], by_edge[768]) == (2, 2, 1, 3, 1)
    assert token_histogram(np.array([], dtype=np.int64))[1].sum() == 0


@pytest.mark.parametrize("largest", [0, 1, 2, 3, 4, 7, 8, 511, 512, 100_000])
def test_the_last_bin_holds_the_largest_value_and_bins_do_not_depend_on_it(largest: int) -> None:
    edges = histogram_edges(largest)
    assert edges[-2] <= largest < edges[-1] or largest < 3
    assert edges.tolist() == histogram_edges(10**6).tolist()[: len(edges)]


def test_four_million_tokens_are_summarized_in_about_a_second() -> None:
    count, length = 20_000, 200
    arrivals = np.sort(np.random.default_rng(0).uniform(0, 5_000, count))
    times = (arrivals[:, None] + np.linspace(0.1, 6.0, length)).ravel()
    ints = np.full(count, length)
    missing = np.full(count, np.nan)
    texts = [""] * count
    requests = RequestColumns(
        [str(i) for i in range(count)],
        arrivals,
        arrivals,
        times[length - 1 :: length],
        times,
        offsets(ints),
        ["stop"] * count,
        ints,
        ints,
        ints,
        ints,
        ints,
        texts,
        texts,
        missing,
        missing,
        np.zeros(count, dtype=np.int64),
    )
    start = time.perf_counter()
    summary = summarize(StepColumns.of([]), requests, SLO(1.0, 0.1))
    assert time.perf_counter() - start < 3  # a second on a free core; the machine may be shared
    assert summary["itl_s"]["count"] == count * (length - 1)
