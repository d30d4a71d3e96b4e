"""What passes between a scheduler and the world that runs its steps. All of it is plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from schedulers.request import Request


@dataclass(slots=True)
class BatchShape:
    """All that the cost of a step depends on: how many tokens are computed, over how much context.

    A *decode* computes the one token a request produced last; everything else (prompts, chunks of them, recomputation
    after a preemption) is a *prefill*. Context is what the KV cache already holds of a request when the step starts.
    """

    #: (tokens to compute, context tokens) of each prefill.
    prefills: list[tuple[int, int]] = field(default_factory=list)
    #: Context tokens of each decode, which computes one token.
    decode_contexts: list[int] = field(default_factory=list)
    #: Requests whose last known token is computed in this step, so that a new one is sampled.
    num_sampled: int = 0

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens computed by prefills."""
        return sum(tokens for tokens, _ in self.prefills)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return self.num_prefill_tokens + len(self.decode_contexts)


@dataclass(slots=True)
class NewRequest:
    """Everything a worker must know of a request it has not seen."""

    request_id: str
    prompt_token_ids: Sequence[int] | None
    sampling: Any
    block_ids: list[int]
    num_computed_tokens: int


@dataclass(slots=True)
class ResumedRequest:
    """A request that comes back from preemption: its whole block table anew, and what the cache already holds."""

    request_id: str
    block_ids: list[int]
    num_computed_tokens: int


@dataclass(slots=True)
class SchedulerOutput:
    """One decided step, as a difference to what workers know."""

    step: int
    #: Tokens to compute for each scheduled request, in batch order.
    num_scheduled_tokens: dict[str, int]
    #: Requests that sample a token at the end of this step, in batch order.
    sampled_ids: list[str]
    new_requests: list[NewRequest]
    resumed_requests: list[ResumedRequest]
    #: Blocks to append to the tables of requests that workers know.
    new_block_ids: dict[str, list[int]]
    #: Requests that ended since the last step; workers forget them.
    finished_ids: list[str]
    #: Requests preempted since the last step; workers keep their tokens and drop their blocks.
    preempted_ids: list[str]
    shape: BatchShape

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Tokens computed in this step, over all requests."""
        return self.shape.num_tokens


@dataclass(slots=True)
class StepResult:
    """What the world sampled: for every id in `sampled_ids`, one token or several, in order."""

    sampled_token_ids: Mapping[str, Sequence[int]]


@dataclass(slots=True)
class StepEvents:
    """What a step changed for the clients."""

    #: Accepted tokens of each request, cut after a stop token or at the length limit.
    new_token_ids: Mapping[str, Sequence[int]]
    #: Requests that ended with this step.
    finished: list[Request]
