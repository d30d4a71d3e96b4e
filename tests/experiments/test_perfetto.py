"""The trace of a run opens in Perfetto's own parser, which finds in it what the run did."""

from __future__ import annotations

from experiments.trace import perfetto_trace
from tests.experiments.perfetto_engine import query
from tests.experiments.synthetic import toy_run


def test_steps_that_follow_each_other_at_odd_times_are_all_kept() -> None:
    steps, requests = toy_run(num_requests=10)
    odd = [step._replace(start_s=step.start_s / 7e3 + 3e3, end_s=step.end_s / 7e3 + 3e3) for step in steps]
    complaints, slices = query(
        perfetto_trace(odd, requests),
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*) from slice join thread_track on slice.track_id = thread_track.id",
    )
    assert not complaints
    assert slices == [(len(steps),)]


def test_perfettos_parser_finds_every_step_counter_and_phase_and_complains_of_nothing() -> None:
    steps, requests = toy_run(num_requests=40)
    phases = [request for request in requests if request.token_times_s]
    complaints, slices, tokens, names, counters, processes = query(
        perfetto_trace(steps, requests),
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*), sum(dur) from slice join thread_track on slice.track_id = thread_track.id",
        "select sum(int_value) from args where flat_key = 'args.tokens'",
        "select name, depth, count(*) from slice where category = 'request' and dur >= 0 group by name, depth",
        "select name, count(*) from counter_track group by name order by name",
        "select name from process where name like '%:%' order by name",
    )
    assert not complaints
    ((count, length_ns),) = slices
    assert count == len(steps)
    assert abs(length_ns / 1e9 - sum(step.end_s - step.start_s for step in steps)) < 1e-6 * len(steps)
    assert tokens == [(sum(step.num_prefill_tokens + step.num_decode_tokens for step in steps),)]
    assert sorted(names) == [
        ("decode", 1, len(phases)), ("prefill", 1, len(phases)), ("queued", 1, len(requests)),
        ("request", 0, len(requests)),
    ]  # fmt: skip
    assert [name for name, _ in counters] == ["KV usage (%) usage", "requests running", "requests waiting"]
    assert processes == [(f"engine: all {len(steps)} steps",), (f"requests: all {len(requests)}",)]
