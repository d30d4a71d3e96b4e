"""Rotary position embeddings (Su et al., 2021), and the ways to stretch them over longer contexts.

Whatever the variant, what a model needs in the end is one angular frequency for each pair of a head's dimensions, and
one factor on the magnitude of rotated vectors. The variants differ only in how they arrive at these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schedulers.errors import InputError

#: Largest number of the type that angles are computed in.
_FLOAT32 = 3.4e38


@dataclass(frozen=True)
class Rope:
    """The rotation of a head's vector at position p: pair i turns by p * frequencies[i] radians.

    Pairs are dimensions i and i + head_dim/2, as in Hugging Face checkpoints.

    Raises:
        InputError: these are no numbers to turn by.
    """

    #: Radians per position, head_dim / 2 of them.
    frequencies: tuple[float, ...]
    #: What cosines and sines are multiplied by (YaRN's attention factor).
    magnitude: float = 1.0

    def __post_init__(self) -> None:
        for number in (*self.frequencies, self.magnitude):
            if not abs(number) < _FLOAT32:
                raise InputError(f"the model's RoPE comes to {number!r}, which is no number to turn by")


def rope_from_config(parameters: Mapping[str, Any], head_dim: int, max_position_embeddings: int) -> Rope:
    """The rotation that a Hugging Face `rope_scaling` or `rope_parameters` entry (with its `rope_theta`) means.

    Raises:
        InputError: the variant is unknown, or a number that it needs is missing; the message names it.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    theta = float(parameters["rope_theta"])
    if theta <= 0:
        raise InputError(f"rope_theta={theta:g} in the model's config: it must be above 0")
    plain = [theta ** (-i / head_dim) for i in range(0, head_dim, 2)]
    try:
        match kind:
            case "default":
                return Rope(tuple(plain))
            case "linear":
                return Rope(tuple(frequency / parameters["factor"] for frequency in plain))
            case "llama3":
                return Rope(_llama3(plain, parameters))
            case "divided":  # GGUF files name no variant but what each frequency is divided by
                return Rope(tuple(f / divisor for f, divisor in zip(plain, parameters["divisors"], strict=True)))
            case "yarn":
                return _yarn(plain, parameters, head_dim, max_position_embeddings)
    except KeyError as missing:
        raise InputError(
            f"the model's RoPE of type {kind!r} needs {missing.args[0]!r}, which its config lacks"
        ) from None
    raise InputError(f"RoPE of type {kind!r} is not supported; there are default, linear, llama3 and yarn")


def scaled_context(parameters: Mapping[str, Any], max_position_embeddings: int) -> int:
    """Tokens that a model is good for: linear and YaRN multiply what it was trained on; other configs say it all."""
    kind = parameters.get("rope_type") or parameters.get("type")
    if kind not in ("linear", "yarn"):
        return max_position_embeddings
    trained = parameters.get("original_max_position_embeddings") or max_position_embeddings
    return max(max_position_embeddings, int(trained * parameters.get("factor", 1.0)))


def _llama3(plain: Sequence[float], parameters: Mapping[str, Any]) -> tuple[float, ...]:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    factor, trained = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]

    def stretched(frequency: float) -> float:
        turns = trained * frequency / (2 * math.pi)  # within the trained context
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return float(frequency * (kept + (1 - kept) / factor))

    return tuple(stretched(frequency) for frequency in plain)


def _yarn(plain: Sequence[float], parameters: Mapping[str, Any], head_dim: int, max_position_embeddings: int) -> Rope:
    """YaRN (Peng et al., 2023), sections 3.2 to 3.4: blend by the turns a pair makes within the trained context."""
    trained = parameters.get("original_max_position_embeddings") or max_position_embeddings
    factor = parameters["factor"]
    beta_fast, beta_slow = parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1
    log_theta = math.log(parameters["rope_theta"])

    def pair_that_turns(times: float) -> float:
        return float(head_dim * math.log(trained / (times * 2 * math.pi)) / (2 * log_theta))

    first, last = pair_that_turns(beta_fast), pair_that_turns(beta_slow)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = (last - first) or 0.001
    stretched = [min(max((i - first) / width, 0.0), 1.0) for i in range(len(plain))]
    frequencies = tuple(f * (1 - s + s / factor) for f, s in zip(plain, stretched, strict=True))

    magnitude = parameters.get("attention_factor")
    if magnitude is None:
        mscale, mscale_all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
        magnitude = (
            _yarn_magnitude(factor, mscale) / _yarn_magnitude(factor, mscale_all_dim)
            if mscale and mscale_all_dim
            else _yarn_magnitude(factor, 1.0)
        )
    return Rope(frequencies, float(magnitude))


def _yarn_magnitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
