"""What a runner hands back for a step: the scheduler's part, and the log-probabilities that clients asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from schedulers.step import StepResult


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities (natural logarithm) at one position: of the token that stands there, and of the likeliest.

    Attributes:
        token_ids: the token that stands there, then the likeliest, in order; it may be among them again.
        logprobs: theirs.
        rank: of the token that stands there; 1 is the likeliest.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


@dataclass(slots=True)
class RunnerResult(StepResult):
    """A step's sampled tokens with log-probabilities, where they were asked for."""

    #: One for each sampled token, by request id.
    logprobs: Mapping[str, list[TokenLogprobs]] = field(default_factory=dict)
    #: Once a request's prompt is computed: one for each prompt token but the first.
    prompt_logprobs: Mapping[str, list[TokenLogprobs]] = field(default_factory=dict)
