"""A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format: steps are slices on the engine's track, KV usage and the numbers of requests
running and waiting are counters, and every request is an asynchronous slice that holds `queued`, `prefill` and
`decode`. Each engine of a cluster is a process of the trace, and its requests are another. Times are microseconds from
the start of the run's clock, whole ones, so that where a step follows another its start is that one's end exactly:
Perfetto drops a slice that overlaps the one before it, by however little.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from experiments.columns import Bools, Floats, Ints, RequestColumns, StepColumns
from schedulers.records import RequestRecord, StepRecord

#: Beyond this many steps or requests a trace shows the beginning of the run: viewers grow slow, and files large.
MAX_STEPS = 50_000
MAX_REQUESTS = 5_000


def told_of_cut(num_steps: int, num_requests: int) -> list[str]:
    """That the trace of a run with so many steps and requests shows only its beginning, if it does."""
    if num_steps <= MAX_STEPS and num_requests <= MAX_REQUESTS:
        return []
    shown = f"{MAX_STEPS:,} steps or {MAX_REQUESTS:,} requests"
    run = f"a run of {num_steps:,} steps and {num_requests:,} requests"
    return [f"The trace for Perfetto ends after {shown}, for {run} would be too long for it; the records are whole."]


def perfetto_trace(
    steps: StepColumns | Sequence[StepRecord],
    requests: RequestColumns | Sequence[RequestRecord],
    *,
    max_steps: int = MAX_STEPS,
    max_requests: int = MAX_REQUESTS,
) -> bytes:
    """The trace of a run whose records are at hand: `trace_of_pieces` of one piece."""
    pieces = [StepColumns.of(steps)], [RequestColumns.of(requests)]
    return trace_of_pieces(*pieces, max_steps=max_steps, max_requests=max_requests)


def trace_of_pieces(
    steps: Iterable[StepColumns],
    requests: Iterable[RequestColumns],
    *,
    max_steps: int = MAX_STEPS,
    max_requests: int = MAX_REQUESTS,
) -> bytes:
    """The gzipped JSON of the trace; the same records give the same bytes.

    A run with more than `max_steps` steps or `max_requests` requests is cut where the first of the two runs out: steps
    that start and requests that arrive by then are in the trace. The track names and `otherData` say what was left
    out.
    """
    head, num_steps = _first_steps(steps, max_steps)
    earliest, num_requests = _earliest_arrivals(requests, max_requests + 1)
    end_s = np.inf
    if num_steps > max_steps:
        # What is not in the head starts, on every engine, no earlier than its last step in the head ended.
        end_s = min(float(head.end_s[head.replica == replica].max()) for replica in np.unique(head.replica))
    if num_requests > max_requests:
        end_s = min(end_s, float(earliest[max_requests]))

    shown_steps = head.start_s < end_s
    replicas = np.unique(head.replica).tolist() or [0]
    step_events = [
        line for replica in replicas for line in _step_events(head, shown_steps & (head.replica == replica), replica)
    ]
    lives: list[tuple[float, int, list[str]]] = []  # by arrival and number
    before = 0
    for piece in requests:
        first_token_s = piece.first_token_s
        shown = np.flatnonzero(piece.arrival_s < end_s).tolist()
        lives += [
            (float(piece.arrival_s[i]), before + i, list(_life(piece, i, first_token_s[i], before + i))) for i in shown
        ]
        before += len(piece)
    request_events = [line for _, _, lines in sorted(lives) for line in lines]

    other = {"steps": _of(int(shown_steps.sum()), num_steps), "requests": _of(len(lives), num_requests)}
    if end_s < np.inf:
        other["cut"] = f"only steps that start and requests that arrive before {end_s:.6f} s are shown"
    events = []
    for replica in replicas:
        engine = f"engine {replica}" if len(replicas) > 1 else "engine"
        whose = f" of engine {replica}" if len(replicas) > 1 else ""
        events += [
            _name("process_name", _engine(replica), 0, f"{engine}: {other['steps']} steps"),
            _name("thread_name", _engine(replica), 1, "steps"),
            _name("process_name", _clients(replica), 0, f"requests{whose}: {other['requests']}"),
        ]
    listed = ",\n".join([*events, *step_events, *request_events])
    text = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},"traceEvents":[\n{listed}\n]}}\n'
    return gzip.compress(text.encode(), compresslevel=4, mtime=0)


def _engine(replica: int) -> int:
    """The process id that stands for an engine."""
    return 2 * replica + 1


def _clients(replica: int) -> int:
    """The process id that stands for the requests of an engine."""
    return 2 * replica + 2


def _first_steps(steps: Iterable[StepColumns], count: int) -> tuple[StepColumns, int]:
    """The first `count` steps, and how many there are."""
    heads, total = [], 0
    for piece in steps:
        if total < count or not heads:
            names = StepRecord._fields
            heads.append(StepColumns(*(getattr(piece, name)[: count - total] for name in names)))
        total += len(piece)
    if not heads:
        return StepColumns.of([]), 0
    return StepColumns(*(np.concatenate([getattr(head, name) for head in heads]) for name in StepRecord._fields)), total


def _earliest_arrivals(requests: Iterable[RequestColumns], count: int) -> tuple[Floats, int]:
    """The `count` earliest arrival times, in order, and how many there are."""
    earliest, total = np.empty(0), 0
    for piece in requests:
        earliest = np.sort(np.concatenate([earliest, piece.arrival_s]))[:count]
        total += len(piece)
    return earliest, total


def _step_events(steps: StepColumns, shown: Bools, replica: int) -> Iterator[str]:
    columns = (
        steps.step,
        _microseconds(steps.start_s),
        _microseconds(steps.end_s),
        steps.num_prefill_tokens,
        steps.num_decode_tokens,
        steps.num_running,
        steps.num_waiting,
        steps.kv_usage * 100,
        steps.num_preemptions,
    )
    process = _engine(replica)
    last_us = 0
    for step, start_us, end_us, prefill, decode, running, waiting, usage, preemptions in zip(
        *(column[shown].tolist() for column in columns), strict=True
    ):
        if start_us > last_us:
            yield _counters(process, last_us, 0, 0, 0.0)  # the engine was idle since the last step
        last_us = end_us
        kind = "mixed" if prefill and decode else "prefill" if prefill else "decode"
        yield (
            f'{{"ph":"X","pid":{process},"tid":1,"name":"{kind}","ts":{start_us},"dur":{end_us - start_us},"args":{{'
            f'"step":{step},"tokens":{prefill + decode},"prefill":{prefill},"decode":{decode},'
            f'"running":{running},"waiting":{waiting},"preemptions":{preemptions}}}}}'
        )
        yield _counters(process, start_us, running, waiting, usage)
    yield _counters(process, last_us, 0, 0, 0.0)


def _microseconds(times_s: Floats) -> Ints:
    return np.rint(times_s * 1e6).astype(np.int64)


def _life(requests: RequestColumns, i: int, first_token_s: float, number: int) -> Iterator[str]:
    """What happened to the i-th of `requests`, the request `number` of the run."""
    arrival, finish = float(requests.arrival_s[i]), float(requests.finish_s[i])
    scheduled, first = float(requests.first_scheduled_s[i]), float(first_token_s)
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
    who = _clients(int(requests.replica[i])), number
    yield _span("b", who, "request", arrival, args)
    # NaN: the request ended before it came so far, and its last phase lasts until then.
    phases = [("queued", arrival), ("prefill", scheduled), ("decode", first)]
    reached = [(name, start) for name, start in phases if not np.isnan(start)]
    ends = [start for _, start in reached[1:]] + [finish]
    for (name, start), end in zip(reached, ends, strict=True):
        yield _span("b", who, name, start)
        yield _span("e", who, name, end)
    yield _span("e", who, "request", finish)


def _span(phase: str, who: tuple[int, int], name: str, time_s: float, args: str = "{}") -> str:
    process, number = who
    ids = f'"cat":"request","id":{number},"pid":{process},"tid":1'
    return f'{{"ph":"{phase}",{ids},"name":"{name}","ts":{round(time_s * 1e6)},"args":{args}}}'


def _counters(process: int, time_us: int, running: int, waiting: int, usage: float) -> str:
    at = f'"ph":"C","pid":{process},"ts":{time_us}'
    return (
        f'{{{at},"name":"requests","args":{{"running":{running},"waiting":{waiting}}}}},\n'
        f'{{{at},"name":"KV usage (%)","args":{{"usage":{usage:.2f}}}}}'
    )


def _name(kind: str, process: int, thread: int, name: str) -> str:
    return json.dumps({"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}})


def _of(shown: int, total: int) -> str:
    return f"all {total:,}" if shown == total else f"the first {shown:,} of {total:,}"
