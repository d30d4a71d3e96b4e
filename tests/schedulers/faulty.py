"""Policies with one planted fault each, as a person could make it without noticing."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from schedulers import (
    Batch,
    ChunkedPrefill,
    Limits,
    Request,
    RequestRefused,
    SchedulerOutput,
    Status,
    StepEvents,
    StepResult,
)


class Starves(ChunkedPrefill):
    """The least urgent never start."""

    def admit(self, request: Request, batch: Batch) -> bool:
        return request.priority < 2


class Displaces(ChunkedPrefill):
    """Whoever waits displaces whoever runs, and the other way round, for ever."""

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        return running[0]


class VictimTwice(ChunkedPrefill):
    """The victim is looked for once a step, and so chosen again when one is not enough."""

    def compose(self, batch: Batch, now: float) -> None:
        self.chosen = max(batch.running, key=lambda request: request.num_tokens, default=None)
        super().compose(batch, now)

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        return self.chosen


class PreemptedTwice(ChunkedPrefill):
    """Workers are told twice."""

    def schedule(self, now: float) -> SchedulerOutput:
        output = super().schedule(now)
        output.preempted_ids = output.preempted_ids * 2
        return output


class OneOver(ChunkedPrefill):
    """A chunk is one token too large."""

    def compose(self, batch: Batch, now: float) -> None:
        batch.budget_left += 1
        super().compose(batch, now)


class LargerLimits(ChunkedPrefill):
    """Believes in an engine with one more slot."""

    def __init__(self, limits: Limits, *, seed: int = 0) -> None:
        super().__init__(dataclasses.replace(limits, max_num_seqs=limits.max_num_seqs + 1), seed=seed)


class Idles(ChunkedPrefill):
    """Waits for company."""

    def compose(self, batch: Batch, now: float) -> None:
        if len(batch.running) + len(self.waiting) > 1:
            super().compose(batch, now)


class Leaks(ChunkedPrefill):
    """A request that is cancelled keeps its blocks."""

    def abort_request(self, request_id: str, now: float) -> Request | None:
        if request := self.live.get(request_id):
            request.block_ids = []
        return super().abort_request(request_id, now)


class Reserves(ChunkedPrefill):
    """Takes blocks for the whole output in advance, and tells no worker."""

    def compose(self, batch: Batch, now: float) -> None:
        super().compose(batch, now)
        for request in batch.running:
            self.kv_cache.allocate(request, request.token_limit)


class Forgets(ChunkedPrefill):
    """A request that nobody expected is dropped."""

    def add_request(self, request: Request) -> None:
        if request.client_id != "bob":
            super().add_request(request)


class NeedsPredictions(ChunkedPrefill):
    """Refuses what it cannot place, which is no fault."""

    def add_request(self, request: Request) -> None:
        if request.predicted_output_tokens is None:
            message = f"request {request.request_id!r} has no predicted_output_tokens"
            raise RequestRefused(message)
        super().add_request(request)

    def order(self, request: Request, now: float) -> Any:
        return request.predicted_output_tokens


class Picky(ChunkedPrefill):
    """Refuses what it could serve."""

    def add_request(self, request: Request) -> None:
        if request.num_prompt_tokens > 7:
            message = "that is too long for me"
            raise RequestRefused(message)
        super().add_request(request)


class Drops(ChunkedPrefill):
    """The last token of a request gets lost on the way to its client."""

    def update_from_output(self, output: SchedulerOutput, result: StepResult, now: float) -> StepEvents:
        events = super().update_from_output(output, result, now)
        for request in events.finished:
            request.output_token_ids.pop()
        return events


class SamplesInOrder(ChunkedPrefill):
    """Tells the sampler another order than the batch has."""

    def schedule(self, now: float) -> SchedulerOutput:
        output = super().schedule(now)
        output.sampled_ids.sort(reverse=True)
        return output


class Promotes(ChunkedPrefill):
    """Changes what the client asked for."""

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        request.priority -= 1


class HashOrder(ChunkedPrefill):
    """Walks a set of strings."""

    def compose(self, batch: Batch, now: float) -> None:
        by_id = {request.request_id: request for request in [*batch.running, *batch.waiting]}
        for request_id in set(by_id):
            batch.schedule(by_id[request_id])


class IdOrder(ChunkedPrefill):
    """Sorts by where objects happen to lie in memory."""

    def order(self, request: Request, now: float) -> int:
        return id(request)


class WallClock(ChunkedPrefill):
    """Looks at a clock of its own."""

    def order(self, request: Request, now: float) -> int:
        return time.perf_counter_ns() % 97


class Shares(ChunkedPrefill):
    """Counts in a list that all schedulers of the class share."""

    served: ClassVar[list[str]] = []

    def order(self, request: Request, now: float) -> int:
        self.served.append(request.request_id)
        return len(self.served) // 3 % 2


class Unpredicted(ChunkedPrefill):
    """Takes it for granted that somebody predicts lengths."""

    def order(self, request: Request, now: float) -> Any:
        return request.predicted_output_tokens


class ReturnsNothing(ChunkedPrefill):
    """Forgets to return."""

    def schedule(self, now: float) -> SchedulerOutput:
        super().schedule(now)
        return None  # type: ignore[return-value]


class Spins(ChunkedPrefill):
    """Waits for ever, past its own `except`, once two requests are there."""

    def compose(self, batch: Batch, now: float) -> None:
        while len(self.live) > 1:
            try:
                self.place = [request.status for request in batch.running].index(Status.FINISHED)
            except Exception:  # noqa: BLE001
                self.place = 0
        super().compose(batch, now)


class KeepsSecrets(ChunkedPrefill):
    """Tells workers of no end."""

    def schedule(self, now: float) -> SchedulerOutput:
        output = super().schedule(now)
        output.finished_ids = []
        return output


class EndsTheProgram(ChunkedPrefill):
    """Ends the program, as if all were well."""

    def compose(self, batch: Batch, now: float) -> None:
        raise SystemExit(0)
