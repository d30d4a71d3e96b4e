"""Schedulers, requests and steps in one line, for tests that are about something else."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schedulers import (
    EDF,
    FCFS,
    HRRN,
    LPM,
    MLFQ,
    SJF,
    SRPT,
    VTC,
    Aging,
    Alternating,
    Batch,
    ChunkedPrefill,
    Limits,
    Orca,
    PastFuture,
    Priority,
    RandomOrder,
    Request,
    Reserving,
    Scheduler,
    SchedulerOutput,
    Static,
    StepEvents,
    StepResult,
)

#: Those that serve requests that differ in nothing as they come; every behaviour that does not depend on the policy is
#: tested on each.
POLICIES: tuple[type[Scheduler], ...] = (ChunkedPrefill, FCFS, Priority, Static, SJF, SRPT, HRRN, Aging, VTC, EDF)

#: What ships.
ALL_POLICIES = (*POLICIES, MLFQ, LPM, RandomOrder, PastFuture, Reserving, Orca, Alternating)

#: A token that stops nothing.
PLAIN = 7


def create_scheduler(
    policy: type[Scheduler] = ChunkedPrefill,
    *,
    token_budget: int = 1024,
    max_num_seqs: int = 16,
    num_blocks: int = 1000,
    block_size: int = 16,
    max_model_len: int = 8192,
    prefix_caching: bool = True,
    **options: Any,
) -> Scheduler:
    """A scheduler with room to spare unless told otherwise; `options` are the policy's own."""
    limits = Limits(
        token_budget=token_budget,
        max_num_seqs=max_num_seqs,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        prefix_caching=prefix_caching,
    )
    return policy(limits, **options)


def create_request(
    request_id: str = "r0", prompt: int | Sequence[int] = 10, *, arrival_time: float = 0.0, **fields: Any
) -> Request:
    """A request with the given prompt tokens, or with so many that nobody else has (so that no prefix is shared).

    Its output is predicted to have 8 tokens unless `fields` say otherwise, since some policies must have a prediction.
    """
    if isinstance(prompt, int):
        first = zlib.crc32(request_id.encode()) * 100_000
        prompt = range(first, first + prompt)
    return Request(request_id, arrival_time, list(prompt), **{"predicted_output_tokens": 8, **fields})


def create_requests(prompts: Sequence[int | Sequence[int]], **fields: Any) -> list[Request]:
    """Requests r0, r1, ... with these prompts, arriving one after the other (at 0 s, 1 s, ...)."""
    return [create_request(f"r{i}", prompt, arrival_time=float(i), **fields) for i, prompt in enumerate(prompts)]


def add_requests(scheduler: Scheduler, prompts: Sequence[int | Sequence[int]], **fields: Any) -> list[Request]:
    """Create requests and hand them over."""
    requests = create_requests(prompts, **fields)
    for request in requests:
        scheduler.add_request(request)
    return requests


def sample(output: SchedulerOutput, tokens: Mapping[str, Sequence[int]] | None = None) -> StepResult:
    """What a model answers: `tokens` where given, else one plain token for whoever samples."""
    return StepResult({request_id: (tokens or {}).get(request_id, [PLAIN]) for request_id in output.sampled_ids})


def run_step(
    scheduler: Scheduler, now: float = 0.0, tokens: Mapping[str, Sequence[int]] | None = None
) -> tuple[SchedulerOutput, StepEvents]:
    """Schedule, sample, update."""
    output = scheduler.schedule(now)
    return output, scheduler.update_from_output(output, sample(output, tokens), now)


def run_to_end(scheduler: Scheduler, max_steps: int = 1000) -> list[dict[str, int]]:
    """Run steps until nobody is left; the tokens that each step scheduled."""
    steps: list[dict[str, int]] = []
    while scheduler.num_running + scheduler.num_waiting:
        output, _ = run_step(scheduler, float(len(steps)))
        assert output.num_scheduled_tokens, "a step made no progress"
        steps.append(output.num_scheduled_tokens)
        assert len(steps) < max_steps, "this takes too long"
    return steps


class Composed(Scheduler):
    """Composes as the test says; `how` can be changed from step to step."""

    how: Callable[[Batch], Any]

    def compose(self, batch: Batch, now: float) -> None:
        self.how(batch)


def schedule_all(batch: Batch) -> None:
    """Everybody, whoever runs first."""
    for request in [*batch.running, *batch.waiting]:
        batch.schedule(request)


def composed(how: Callable[[Batch], Any] = schedule_all, **limits: int) -> Composed:
    """A scheduler that composes its steps by `how`."""
    scheduler = create_scheduler(Composed, **limits)  # type: ignore[arg-type]
    assert isinstance(scheduler, Composed)
    scheduler.how = how
    return scheduler


def ids(requests: Sequence[Request]) -> list[str]:
    """Their ids."""
    return [request.request_id for request in requests]
