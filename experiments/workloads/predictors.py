"""Length predictors: what is said to a policy about outputs, by those who know or guess. Configured in conf/predictor.

They stand between a workload, which knows how long each output will be, and the scheduler, which reads only
`Request.predicted_output_tokens`. Predictors that learn from finished requests live with the policies instead, in
`schedulers.predictors`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from experiments.workloads import checks
from experiments.workloads.request import WorkloadRequest
from schedulers.chance import draws


class Predictor(Protocol):
    """Says how long the output of a request will be."""

    def predict(self, request: WorkloadRequest, seed: int) -> float | None:
        """Output tokens, or None for nothing. Depends on the request and the seed alone, not on who came before."""
        ...


@dataclass(frozen=True)
class NoPrediction:
    """Nothing is said."""

    def predict(self, request: WorkloadRequest, seed: int) -> float | None:
        """None."""
        return None


@dataclass(frozen=True)
class Oracle:
    """The truth: the hidden length, or the client's limit if that is less."""

    def predict(self, request: WorkloadRequest, seed: int) -> float | None:
        """Tokens that the output will have, unless the model's limit cuts it."""
        return float(min(request.num_output_tokens, request.max_tokens or request.num_output_tokens))


@dataclass(frozen=True, kw_only=True)
class Noisy(Oracle):
    """The truth times exp(sigma x), x standard normal: as often too short as too long, by the same factor."""

    sigma: float

    def __post_init__(self) -> None:
        checks.not_negative("predictor.sigma", self.sigma)

    def predict(self, request: WorkloadRequest, seed: int) -> float | None:
        """The truth with the error that this request has under this seed."""
        truth = super().predict(request, seed)
        uniform = next(draws(seed, f"predictor {request.request_id}"))
        return None if truth is None else truth * math.exp(self.sigma * NormalDist().inv_cdf(max(uniform, 2**-53)))


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same for everybody."""

    num_tokens: float

    def __post_init__(self) -> None:
        checks.positive("predictor.num_tokens", self.num_tokens)

    def predict(self, request: WorkloadRequest, seed: int) -> float | None:
        """`num_tokens`."""
        return self.num_tokens
