"""The arithmetic of sampling, over all rows of a batch at once; `real.sampler` says which rows each rule is for.

No row's result depends on another row, so that a request gets the same tokens whatever else is in the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: How many of the likeliest tokens are sorted at first to find where a rule cuts; all of them only if that is too few.
NUM_CANDIDATES = 128
#: Tokens whose probabilities are summed at once when drawing.
BLOCK = 256

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def argmax(logits: Tensor) -> Tensor:
    """The likeliest token of each row, the first of equals. On CPUs by numpy, which takes a tenth of torch's time."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def penalize(
    logits: Tensor,
    known: Tensor,
    output: Tensor,
    is_output: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> None:
    """Change `logits` by the penalties for tokens that a request already has; only those tokens are touched.

    Args:
        logits: float32 [rows, vocab].
        known: int64 [rows, length]: tokens of prompt and output; the rest repeats one of them.
        output: int64 [rows, length]: tokens of the output; the rest repeats one of them, if there is any.
        is_output: which places of `output` are no such repetition, [rows, length].
        presence: penalties, [rows, 1]; 0 for rows without output. So are `frequency` and `repetition`.
    """
    # A token that stands in several places gets the same value from each, so that it does not matter which is last.
    found = logits.gather(1, known)
    logits.scatter_(1, known, torch.where(found > 0, found / repetition, found * repetition))
    logits.scatter_(1, output, logits.gather(1, output) - presence)
    logits.scatter_add_(1, output, -frequency * is_output)


def cut(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, num_candidates: int = NUM_CANDIDATES) -> Tensor:
    """The least probability [rows, 1] that survives min-p, then top-k, then top-p; equals survive together.

    min-p (Nguyen et al., 2024): at least `min_p` times the highest. top-k (Fan et al., 2018): at least the k-th
    highest. top-p (Holtzman et al., 2019): at least that of the last token that the likeliest need to reach the share
    `top_p` of what the other two left.

    Args:
        probs: float32 [rows, vocab]; each row sums to 1.
        top_k: int64 [rows, 1]; the size of the vocabulary for "all".
        top_p: float32 [rows, 1]; 1 for "all"; so is `min_p`, with 0 for "all".
        num_candidates: how many are sorted at first.
    """
    vocab = probs.shape[1]
    limited = top_k[top_k < vocab]
    num_candidates = min(max(num_candidates, int(limited.max()) + 1 if limited.numel() else 0), vocab)
    ranked = _highest(probs, num_candidates)
    kth = ranked.gather(1, (top_k - 1).clamp(max=num_candidates - 1))
    floor = torch.maximum(min_p * ranked[:, :1], torch.where(top_k < vocab, kth, 0.0))
    ranked = ranked * (ranked >= floor)
    mass = ranked.cumsum(dim=1, dtype=torch.float64)
    # All survivors are among the candidates, or else all tokens survived so far.
    complete = (floor > ranked[:, -1:]) | (num_candidates == vocab)
    # What no other rule has cut sums to 1, to whatever rounding: the cut must not depend on how many were sorted.
    total = torch.where(floor > 0, mass[:, -1:], 1.0)
    needed = (mass - ranked < top_p * total) & (ranked > 0)
    least = torch.where(needed, ranked, torch.inf).amin(dim=1, keepdim=True)
    result = torch.where(top_p < 1, least, floor)
    decided = complete | (top_p >= 1) | ((floor == 0) & (mass[:, -1:] >= top_p))
    if not decided.all():
        rest = ~decided[:, 0]
        if probs.device.type == "cpu":
            for row in rest.nonzero()[:, 0].tolist():
                result[row] = _cut_by_mass(probs[row].numpy(), float(floor[row]), float(top_p[row]))
        else:
            result[rest] = cut(probs[rest], top_k[rest], top_p[rest], min_p[rest], vocab)
    return result


def _cut_by_mass(probs: NDArray[np.float32], floor: float, top_p: float) -> float:
    """The least probability of a row that survives top-p, among those of at least `floor`.

    Without sorting the row, which takes several times as long: probabilities are first counted by the leading half of
    their bits, which order them, and only those are sorted that share it with the one that is sought.
    """
    survivors = probs[probs >= floor]
    leading = survivors.view(np.int32) >> 16
    masses = np.bincount(leading, weights=survivors)
    mass = masses[::-1].cumsum()  # from the likeliest
    target = top_p * (float(mass[-1]) if floor > 0 else 1.0)
    place = int(np.searchsorted(mass, target))
    if place == len(mass):
        return floor
    group = len(masses) - 1 - place
    inside = np.sort(survivors[leading == group])[::-1]
    within = mass[place] - masses[group] + inside.cumsum(dtype=np.float64)
    return float(inside[min(int(np.searchsorted(within, target)), len(inside) - 1)])


def _highest(probs: Tensor, num: int) -> Tensor:
    """The `num` highest of each row, in order. On CPUs numpy sorts several times faster than torch."""
    if num == probs.shape[1] and probs.device.type == "cpu":
        return torch.from_numpy(np.sort(probs.numpy(), axis=-1)).flip(1)
    return probs.topk(num, dim=1).values


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """One token of each row, with probability proportional to its weight.

    The inverse of the cumulative distribution, in the order of the vocabulary: first the block of tokens, then the
    token within it, so that no sum over the vocabulary loses small weights.

    Args:
        weights: float32 [rows, vocab], at least 0 and somewhere positive.
        uniforms: float64 [rows], at least 0 and less than 1.
    """
    rows, vocab = weights.shape
    if vocab % BLOCK:
        weights = torch.nn.functional.pad(weights, (0, -vocab % BLOCK))
    blocks = weights.view(rows, -1, BLOCK)
    sums = blocks.sum(dim=2, dtype=torch.float32).cumsum(dim=1, dtype=torch.float64)
    block, offset = _find(sums, uniforms[:, None] * sums[:, -1:])
    within = blocks[torch.arange(rows, device=weights.device), block[:, 0]].cumsum(dim=1, dtype=torch.float64)
    token, _ = _find(within, offset)
    return (block * BLOCK + token)[:, 0]


def _find(sums: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first place [rows, 1] where the running sum exceeds the target, and the target less the sum before it."""
    total = sums[:, -1:]
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))  # rounding must not pass the end
    place = torch.searchsorted(sums, target, right=True)
    before = torch.where(place > 0, sums.gather(1, (place - 1).clamp(min=0)), 0.0)
    return place, target - before


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """The number in [0, 1) with which each request draws the token at `positions` of its output.

    The stream of a request is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) from its mixed seed. Since any place of
    it is reached directly, there is no generator to keep: batch, row and preemptions cannot matter.
    """
    bits = _mix(_mix(seeds) + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    return bits ^ (bits >> np.uint64(31))
