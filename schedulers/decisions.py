"""All that a scheduler was told and all that it decided, step by step: enough to ask it again, in another world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schedulers.request import SLO, Request
from schedulers.step import NewRequest, ResumedRequest, SchedulerOutput, StepResult


class Arrival(NamedTuple):
    """A request as its client made it: the arguments of `Request`, but for what only a sampler reads."""

    request_id: str
    arrival_s: float
    prompt_token_ids: Sequence[int] | None
    num_prompt_tokens: int
    prompt_block_hashes: list[Any]
    content_id: str
    max_tokens: int | None
    min_tokens: int
    eos_token_id: int | None
    ignore_eos: bool
    stop_token_ids: list[int]
    priority: int
    client_id: str
    session_id: str
    slo: SLO | None
    predicted_output_tokens: float | None
    cache_salt: str
    prompt_logprobs: bool

    @classmethod
    def of(cls, request: Request) -> Arrival:
        """What was given of a request; what became of it is left out."""
        return cls(
            request.request_id,
            request.arrival_time,
            request.prompt_token_ids,
            request.num_prompt_tokens,
            list(request.prompt_block_hashes),
            request.content_id,
            request.max_tokens,
            request.min_tokens,
            request.eos_token_id,
            request.ignore_eos,
            sorted(request.stop_token_ids),
            request.priority,
            request.client_id,
            request.session_id,
            request.slo,
            request.predicted_output_tokens,
            request.cache_salt,
            request.prompt_logprobs,
        )

    def request(self) -> Request:
        """The request anew, without any progress."""
        arguments = self._asdict()
        return Request(arguments.pop("request_id"), arguments.pop("arrival_s"), **arguments)


class Admission(NamedTuple):
    """A request that starts, or comes back: what the cache holds of it, and its whole block table."""

    num_cached_tokens: int
    block_ids: list[int]


class StepDecisions(NamedTuple):
    """One step: what the scheduler had learned since the last one, what it decided, and what came of it.

    Times are those that the scheduler was told, on the clock of its world, in seconds.
    """

    step: int
    #: The time given to `schedule`, and that given to `update_from_output`.
    start_s: float
    end_s: float
    #: Requests that came before this step and after the last, and ids of those that were aborted then, in order.
    news: list[Arrival | str]
    #: Tokens to compute for each request, in batch order.
    num_scheduled_tokens: Mapping[str, int]
    admissions: dict[str, Admission]
    #: Blocks appended to the tables of others.
    new_block_ids: Mapping[str, list[int]]
    preempted_ids: list[str]
    #: Requests that ended since the last step.
    finished_ids: list[str]
    #: What the world sampled at its end, for every request that was to sample.
    sampled_token_ids: Mapping[str, Sequence[int]]

    @classmethod
    def of(
        cls, output: SchedulerOutput, result: StepResult, news: list[Arrival | str], start_s: float, end_s: float
    ) -> StepDecisions:
        """What is to be kept of a step; it shares the step's own containers, which nobody changes."""
        admitted: list[NewRequest | ResumedRequest] = [*output.new_requests, *output.resumed_requests]
        return cls(
            output.step,
            start_s,
            end_s,
            news,
            output.num_scheduled_tokens,
            {request.request_id: Admission(request.num_computed_tokens, request.block_ids) for request in admitted},
            output.new_block_ids,
            output.preempted_ids,
            output.finished_ids,
            {request_id: result.sampled_token_ids[request_id] for request_id in output.sampled_ids},
        )
