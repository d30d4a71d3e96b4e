"""A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format: steps are slices on the engine's track, KV usage and the numbers of requests
running and waiting are counters, and every request is an asynchronous slice that holds `queued`, `prefill` and
`decode`. Times are microseconds from the start of the run's clock.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence

import numpy as np

from experiments.columns import RequestColumns, StepColumns
from schedulers.records import RequestRecord, StepRecord

#: Beyond this many steps or requests a trace shows the beginning of the run: viewers grow slow, and files large.
MAX_STEPS = 50_000
MAX_REQUESTS = 5_000


def perfetto_trace(
    steps: StepColumns | Sequence[StepRecord],
    requests: RequestColumns | Sequence[RequestRecord],
    *,
    max_steps: int = MAX_STEPS,
    max_requests: int = MAX_REQUESTS,
) -> bytes:
    """The gzipped JSON of the trace; the same records give the same bytes.

    A run with more than `max_steps` steps or `max_requests` requests is cut where the first of the two runs out: steps
    that start and requests that arrive by then are in the trace. The track names and `otherData` say what was left
    out.
    """
    steps, requests = StepColumns.of(steps), RequestColumns.of(requests)
    by_arrival = np.argsort(requests.arrival_s, kind="stable")
    end_s = np.inf
    if len(steps) > max_steps:
        end_s = float(steps.start_s[max_steps])
    if len(requests) > max_requests:
        end_s = min(end_s, float(requests.arrival_s[by_arrival[max_requests]]))
    num_steps = int((steps.start_s < end_s).sum())
    shown = [int(i) for i in by_arrival if requests.arrival_s[i] < end_s]

    step_track = f"engine: {_of(num_steps, len(steps))} steps"
    request_track = f"requests: {_of(len(shown), len(requests))}"
    events = [
        _name("process_name", 1, 0, step_track),
        _name("thread_name", 1, 1, "steps"),
        _name("process_name", 2, 0, request_track),
        *_step_events(steps, num_steps),
        *_request_events(requests, shown),
    ]
    other = {"steps": _of(num_steps, len(steps)), "requests": _of(len(shown), len(requests))}
    if end_s < np.inf:
        other["cut"] = f"only steps that start and requests that arrive before {end_s:.6f} s are shown"
    listed = ",\n".join(events)
    text = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n{listed}\n]}}\n'
    return gzip.compress(text.encode(), compresslevel=4, mtime=0)


def _step_events(steps: StepColumns, count: int) -> Iterator[str]:
    columns = (
        steps.step,
        steps.start_s * 1e6,
        (steps.end_s - steps.start_s) * 1e6,
        steps.num_prefill_tokens,
        steps.num_decode_tokens,
        steps.num_running,
        steps.num_waiting,
        steps.kv_usage * 100,
        steps.num_preemptions,
    )
    end_us = 0.0
    for step, start_us, length_us, prefill, decode, running, waiting, usage, preemptions in zip(
        *(column[:count].tolist() for column in columns), strict=True
    ):
        if start_us > end_us:
            yield _counters(end_us, 0, 0, 0.0)  # the engine was idle since the last step
        end_us = start_us + length_us
        kind = "mixed" if prefill and decode else "prefill" if prefill else "decode"
        yield (
            f'{{"ph":"X","pid":1,"tid":1,"name":"{kind}","ts":{start_us:.3f},"dur":{length_us:.3f},"args":{{'
            f'"step":{step},"tokens":{prefill + decode},"prefill":{prefill},"decode":{decode},'
            f'"running":{running},"waiting":{waiting},"preemptions":{preemptions}}}}}'
        )
        yield _counters(start_us, running, waiting, usage)
    yield _counters(end_us, 0, 0, 0.0)


def _request_events(requests: RequestColumns, shown: list[int]) -> Iterator[str]:
    first_token_s = requests.first_token_s
    for i in shown:
        arrival, finish = float(requests.arrival_s[i]), float(requests.finish_s[i])
        scheduled, first = float(requests.first_scheduled_s[i]), float(first_token_s[i])
        args = json.dumps(
            {
                "request": requests.request_id[i],
                "prompt tokens": int(requests.num_prompt_tokens[i]),
                "output tokens": int(requests.num_output_tokens[i]),
                "cached tokens": int(requests.num_cached_tokens[i]),
                "preemptions": int(requests.num_preemptions[i]),
                "finish": requests.finish_reason[i],
            }
        )
        yield _span("b", i, "request", arrival, args)
        # NaN: the request ended before it came so far, and its last phase lasts until then.
        phases = [("queued", arrival), ("prefill", scheduled), ("decode", first)]
        reached = [(name, start) for name, start in phases if not np.isnan(start)]
        ends = [start for _, start in reached[1:]] + [finish]
        for (name, start), end in zip(reached, ends, strict=True):
            yield _span("b", i, name, start)
            yield _span("e", i, name, end)
        yield _span("e", i, "request", finish)


def _span(phase: str, number: int, name: str, time_s: float, args: str = "{}") -> str:
    ids = f'"cat":"request","id":{number},"pid":2,"tid":1'
    return f'{{"ph":"{phase}",{ids},"name":"{name}","ts":{time_s * 1e6:.3f},"args":{args}}}'


def _counters(time_us: float, running: int, waiting: int, usage: float) -> str:
    return (
        f'{{"ph":"C","pid":1,"name":"requests","ts":{time_us:.3f},"args":{{"running":{running},"waiting":{waiting}}}}},\n'
        f'{{"ph":"C","pid":1,"name":"KV usage (%)","ts":{time_us:.3f},"args":{{"usage":{usage:.2f}}}}}'
    )


def _name(kind: str, process: int, thread: int, name: str) -> str:
    return json.dumps({"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}})


def _of(shown: int, total: int) -> str:
    return f"all {total:,}" if shown == total else f"the first {shown:,} of {total:,}"
