"""How long prompts and outputs are.

A distribution is its quantile function. A request draws its quantile whatever the distribution: with another one, or in
another class, the k-th request is still, say, in the longest tenth, which takes noise out of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from experiments.workloads import checks
from schedulers.errors import InputError


class Lengths(Protocol):
    """A distribution of numbers of tokens, each at least 1."""

    def tokens(self, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
        """The lengths at `quantiles`, which are in [0, 1); same shape."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Always `num_tokens`."""

    num_tokens: int

    def __post_init__(self) -> None:
        checks.count("num_tokens of fixed lengths", self.num_tokens)

    def tokens(self, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
        """`num_tokens` everywhere."""
        return np.full(quantiles.shape, self.num_tokens, dtype=np.int64)

    def __str__(self) -> str:
        return f"{self.num_tokens} tokens"


@dataclass(frozen=True)
class Lognormal:
    """Lognormal lengths, rounded, then clipped to [`min_tokens`, `max_tokens`].

    `sigma` is the standard deviation of the logarithm. Clipping moves the mean, not the median.
    """

    median_tokens: float
    sigma: float
    max_tokens: int
    min_tokens: int = 1

    def __post_init__(self) -> None:
        checks.positive("median_tokens of lognormal lengths", self.median_tokens)
        checks.not_negative("sigma of lognormal lengths", self.sigma)
        checks.count("min_tokens of lognormal lengths", self.min_tokens)
        checks.count("max_tokens of lognormal lengths", self.max_tokens)
        if not self.min_tokens <= self.median_tokens <= self.max_tokens:
            raise InputError(
                f"lognormal lengths: median_tokens={self.median_tokens:g} must lie between "
                f"min_tokens={self.min_tokens} and max_tokens={self.max_tokens}"
            )

    @classmethod
    def from_mean(
        cls, mean_tokens: float, percent: float, percentile_tokens: float, max_tokens: int, min_tokens: int = 1
    ) -> Lognormal:
        """The lognormal with this mean (before clipping) whose percentile `percent` is `percentile_tokens`.

        With z the standard normal's percentile, ln(percentile / mean) = z sigma - sigma^2 / 2; of the two solutions
        the one with the smaller sigma is taken.

        Raises:
            InputError: no lognormal has both.
        """
        checks.positive("mean_tokens of lognormal lengths", mean_tokens)
        checks.positive("percentile_tokens of lognormal lengths", percentile_tokens)
        checks.positive("percent of lognormal lengths", percent)
        if percent >= 100:
            raise InputError(f"percent of lognormal lengths={percent:g}: it must be below 100")
        z = NormalDist().inv_cdf(percent / 100)
        log_ratio = math.log(percentile_tokens / mean_tokens)
        discriminant = z * z - 2 * log_ratio
        sigma = min((s for s in (z - _root(discriminant), z + _root(discriminant)) if s >= 0), default=math.nan)
        if math.isnan(sigma):
            raise InputError(
                f"no lognormal has a mean of {mean_tokens:g} tokens and {percentile_tokens:g} as percentile {percent:g}"
            )
        return cls(mean_tokens * math.exp(-sigma * sigma / 2), sigma, max_tokens, min_tokens)

    def tokens(self, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
        """Lengths at `quantiles`."""
        inverse = NormalDist().inv_cdf
        # Quantile 0 has no inverse; generators draw multiples of 2**-53, so this is below any other.
        normal = np.array([inverse(max(quantile, 2.0**-54)) for quantile in quantiles.tolist()])
        # Clipped as logarithms, because exp of a wide distribution's tail can overflow.
        logs = np.clip(math.log(self.median_tokens) + self.sigma * normal, *np.log([self.min_tokens, self.max_tokens]))
        return np.rint(np.exp(logs)).astype(np.int64)

    def __str__(self) -> str:
        return f"lognormal (median {self.median_tokens:g}, sigma {self.sigma:.3g})"


@dataclass(frozen=True)
class Percentiles:
    """Lengths between published percentiles, which say more of a distribution with several peaks than a formula does.

    `tokens_at` gives the length at each percent, in rising order from 0, the shortest, to 100, the longest; between two
    of them the length grows linearly with the quantile.
    """

    tokens_at: Mapping[float, float]

    def __post_init__(self) -> None:
        percents, lengths = list(self.tokens_at), list(self.tokens_at.values())
        for percent, length in self.tokens_at.items():
            checks.not_negative("a percent of tokens_at", percent)
            checks.not_negative(f"tokens_at percent {percent:g}", length)
        if percents[:1] != [0] or percents[-1] != 100 or any(after <= before for before, after in pairwise(percents)):
            raise InputError(f"tokens_at: the percents must rise from 0 to 100; given {percents}")
        if lengths[0] < 1 or any(after < before for before, after in pairwise(lengths)):
            raise InputError(f"tokens_at: the lengths must start at 1 token or more and not fall; given {lengths}")

    def tokens(self, quantiles: NDArray[np.float64]) -> NDArray[np.int64]:
        """Lengths at `quantiles`, interpolated and rounded."""
        percents, lengths = list(self.tokens_at), list(self.tokens_at.values())
        return np.rint(np.interp(quantiles * 100, percents, lengths)).astype(np.int64, copy=False)

    def __str__(self) -> str:
        median, longest = self.tokens(np.array([0.5, 1.0]))
        return f"by percentiles (median {median}, longest {longest})"


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan
