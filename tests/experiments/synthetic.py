"""Records of runs that never happened: a toy queue, so that what is made of records can be tested without an engine."""

from __future__ import annotations

import random
from dataclasses import dataclass

from schedulers.records import RequestRecord, StepRecord
from schedulers.request import SLO


@dataclass
class _Running:
    number: int
    arrival_s: float
    prompt: int
    output: int
    scheduled_s: float | None = None


def toy_run(
    rate: float = 4.0,
    num_requests: int = 100,
    seed: int = 0,
    slots: int = 32,
    *,
    static: bool = False,
    slo: SLO | None = None,
) -> tuple[list[StepRecord], list[RequestRecord]]:
    """A queue with `slots` places: a step takes 8 ms and 50 us a token, and every running request gets a token from it.

    With `static`, a batch is only filled when it is empty. Arrivals are Poisson; the last request but one is aborted
    unscheduled when there are more than ten.
    """
    rng = random.Random(seed)
    now, waiting = 0.0, []
    for number in range(num_requests):
        now += rng.expovariate(rate)
        waiting.append(_Running(number, now, rng.randint(20, 1500), rng.randint(1, 200)))
    steps: list[StepRecord] = []
    requests: list[RequestRecord] = []
    running: list[_Running] = []
    times: dict[int, list[float]] = {request.number: [] for request in waiting}

    def record(request: _Running, finish_s: float, reason: str) -> RequestRecord:
        tokens = tuple(times[request.number])
        return RequestRecord(
            f"r{request.number}",
            request.arrival_s,
            request.scheduled_s,
            finish_s,
            tokens,
            reason,
            request.prompt,
            len(tokens),
            request.prompt // 8 if request.scheduled_s is not None else 0,
            0,
            0,
            "client",
            "",
            slo.ttft_s if slo else None,
            slo.tpot_s if slo else None,
        )

    if num_requests > 10:
        aborted = waiting.pop(-2)
        requests.append(record(aborted, aborted.arrival_s + 1.0, "abort"))
    now = waiting[0].arrival_s
    while waiting or running:
        prefill_tokens = prefills = 0
        if not running:
            now = max(now, waiting[0].arrival_s)
        start, decodes = now, len(running)
        while waiting and waiting[0].arrival_s <= now and len(running) < slots and not (static and decodes):
            request = waiting.pop(0)
            request.scheduled_s = start
            prefill_tokens += request.prompt
            prefills += 1
            running.append(request)
        now += 0.008 + 50e-6 * (prefill_tokens + decodes)
        queued = sum(1 for request in waiting if request.arrival_s <= start)
        steps.append(
            StepRecord(
                len(steps) + 1,
                start,
                now,
                prefill_tokens,
                decodes,
                prefills,
                len(running),
                queued,
                len(running) / slots,
                0,
            )
        )
        for request in list(running):
            times[request.number].append(now)
            if len(times[request.number]) == request.output:
                running.remove(request)
                requests.append(record(request, now, "stop"))
    return steps, requests
