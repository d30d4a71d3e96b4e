"""Each rule of sampling again, in plain Python over one request, as its definition reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from real.sampling_params import SamplingParams


@dataclass(frozen=True)
class Case:
    """A request in the middle of its output."""

    params: SamplingParams
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def constrained(logits: Sequence[float], case: Case, eos: Sequence[int]) -> list[float]:
    """Logits of one request after the rules that shift or forbid tokens."""
    params, output = case.params, case.output
    result = list(logits)
    for token in range(len(result)):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            result[token] = -math.inf
        for word in params.bad_words_token_ids:
            if (*output, token)[-len(word) :] == word:
                result[token] = -math.inf
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos))
        too_early = len(output) < params.min_tokens or len(output) + 1 < (params.forced_length or 0)
        if too_early and token in stops:
            result[token] = -math.inf
        result[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in case.prompt + output:
            if result[token] > 0:
                result[token] /= params.repetition_penalty
            else:
                result[token] *= params.repetition_penalty
        result[token] -= params.frequency_penalty * output.count(token)
        if token in output:
            result[token] -= params.presence_penalty
    return result


def probabilities(logits: Sequence[float], temperature: float) -> list[float]:
    """The softmax of logits / temperature."""
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def survivors(probs: Sequence[float], params: SamplingParams, slack: float) -> set[int]:
    """Tokens that min-p, then top-k, then top-p leave; with `slack` in the comparisons of top-p and min-p."""
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    left = [token for token in order if probs[token] >= params.min_p * probs[order[0]] * (1 - slack)]
    if 0 < params.top_k < len(left):
        left = [token for token in left if probs[token] >= probs[left[params.top_k - 1]]]
    if params.top_p < 1:
        total = sum(probs[token] for token in left)
        before, needed = 0.0, 0
        while needed < len(left) and (before < params.top_p * total + slack or not needed):
            before += probs[left[needed]]
            needed += 1
        left = [token for token in left if probs[token] >= probs[left[needed - 1]]]
    return set(left)
