"""The trace of a run shows its steps, its counters and the life of every request."""

from __future__ import annotations

import gzip
import json
import time
from collections import defaultdict
from typing import Any

from experiments.columns import StepColumns
from experiments.trace import perfetto_trace
from tests.experiments.synthetic import toy_run


def events_of(trace: bytes) -> tuple[list[dict[str, Any]], dict[str, str]]:
    content = json.loads(gzip.decompress(trace))
    return content["traceEvents"], content["otherData"]


def test_every_step_is_a_slice_with_its_tokens() -> None:
    steps, requests = toy_run(num_requests=20)
    events, other = events_of(perfetto_trace(steps, requests))
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(steps)
    assert [event["args"]["tokens"] for event in slices] == [s.num_prefill_tokens + s.num_decode_tokens for s in steps]
    assert abs(slices[3]["ts"] / 1e6 - steps[3].start_s) < 1e-6
    assert other == {"steps": f"all {len(steps)}", "requests": "all 20"}


def test_every_request_is_queued_then_prefilled_then_decoded_and_every_slice_is_closed() -> None:
    steps, requests = toy_run(num_requests=20)
    events, _ = events_of(perfetto_trace(steps, requests))
    by_id: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "be":
            by_id[event["id"]].append(event)
    assert len(by_id) == 20
    for number, spans in by_id.items():
        open_spans: list[str] = []
        for event in spans:
            if event["ph"] == "b":
                open_spans.append(event["name"])
            else:
                assert open_spans.pop() == event["name"]
        assert not open_spans
        times = [event["ts"] for event in spans]
        assert times == sorted(times)
        names = [event["name"] for event in spans if event["ph"] == "b"]
        aborted = requests[number].finish_reason == "abort"
        assert names == ["request", "queued"] + ([] if aborted else ["prefill", "decode"])


def test_counters_fall_to_zero_when_the_engine_idles() -> None:
    steps, requests = toy_run(rate=0.05, num_requests=3)
    events, _ = events_of(perfetto_trace(steps, requests))
    running = [event["args"]["running"] for event in events if event["ph"] == "C" and event["name"] == "requests"]
    assert running.count(0) == 4  # before the first request, twice between requests, and after the last


def test_a_cut_trace_says_what_it_left_out() -> None:
    steps, requests = toy_run(num_requests=40)
    events, other = events_of(perfetto_trace(steps, requests, max_requests=10))
    assert other["requests"] == "the first 10 of 40"
    assert "before" in other["cut"]
    assert any("the first 10 of 40" in event["args"].get("name", "") for event in events if event["ph"] == "M")
    assert len({event["id"] for event in events if event["ph"] == "b"}) == 10
    last = max(event["ts"] for event in events if event["ph"] == "X")
    assert last / 1e6 < sorted(request.arrival_s for request in requests)[10]
    _, other = events_of(perfetto_trace(steps, requests, max_steps=5))
    assert other["steps"].startswith("the first 5 of")


def test_the_trace_of_a_run_without_records_opens() -> None:
    events, other = events_of(perfetto_trace([], []))
    assert other["steps"] == "all 0"
    assert all(event["ph"] in "MC" for event in events)


def test_a_name_with_quotes_stays_valid_json() -> None:
    steps, requests = toy_run(num_requests=1)
    events, _ = events_of(perfetto_trace(steps, [requests[0]._replace(request_id='a"b\\c')]))
    assert any(event.get("args", {}).get("request") == 'a"b\\c' for event in events)


def test_a_long_run_is_traced_in_seconds_and_always_the_same() -> None:
    steps, requests = toy_run(rate=50, num_requests=6_000, slots=256)
    start = time.perf_counter()
    trace = perfetto_trace(steps, requests)
    assert time.perf_counter() - start < 6  # about a second on a free core
    assert trace == perfetto_trace(StepColumns.of(steps), requests)


def test_every_engine_of_a_cluster_has_a_track_of_its_own_and_its_requests_another() -> None:
    steps, requests = toy_run(num_requests=12)
    steps = [step._replace(replica=number % 2) for number, step in enumerate(steps)]
    requests = [request._replace(replica=number % 2) for number, request in enumerate(requests)]
    events, _ = events_of(perfetto_trace(steps, requests))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    told = f"all {len(steps)} steps"
    assert names == {
        1: f"engine 0: {told}", 2: "requests of engine 0: all 12", 3: f"engine 1: {told}",
        4: "requests of engine 1: all 12",
    }  # fmt: skip
    assert {event["pid"] for event in events if event["ph"] in "XC"} == {1, 3}
    assert {event["pid"] for event in events if event["ph"] in "be"} == {2, 4}


def test_a_cut_cluster_shows_every_engine_up_to_the_same_moment() -> None:
    steps, requests = toy_run(num_requests=40)
    steps = [step._replace(replica=number % 3) for number, step in enumerate(steps)]
    events, other = events_of(perfetto_trace(steps, requests, max_steps=30))
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {1, 3, 5}
    end_s = float(other["cut"].split()[-4])
    assert max(event["ts"] for event in slices) / 1e6 < end_s
    assert len(slices) == sum(step.start_s < end_s - 1e-6 for step in steps)  # as it is printed
