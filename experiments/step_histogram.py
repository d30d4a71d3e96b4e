"""How many tokens steps computed, as a histogram in text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from experiments.columns import Floats, Ints, StepColumns

#: Characters that a bar has at most, and what fills one by eighths.
WIDTH, EIGHTHS = 24, " ▏▎▍▌▋▊▉█"

#: Where rows begin, in tokens; no step has as many as the last.
EDGES = np.array([0, *(1 << power for power in range(40))])


def step_histogram(pieces: Iterable[StepColumns]) -> str:
    """A row a doubling of tokens, and in it the share of steps that computed so many tokens of prompts, or of decodes.

    Bars of a column are to one scale, its own. Steps without any such token are most of a run as a rule; their row has
    no bar, so that the others can be read.
    """
    prefills, decodes = np.zeros((2, len(EDGES) - 1))
    for steps in pieces:
        prefills += _counts(steps.num_prefill_tokens)
        decodes += _counts(steps.num_decode_tokens)
    there = np.flatnonzero(prefills + decodes)
    shown = int(there[-1]) + 1 if len(there) else 1
    labels = [f"{low:,}" if high - low == 1 else f"{low:,}-{high - 1:,}" for low, high in pairwise(EDGES.tolist())]
    cells = [_cells(counts[:shown]) for counts in (prefills, decodes)]
    width = max(map(len, [*labels[:shown], "tokens"]))
    head = ("tokens", *(f"{name:<{len(cells[0][0])}}" for name in ("prefill", "decode")))
    rows = [head, *zip(labels[:shown], *cells, strict=True)]
    lines = [f"{label:>{width}}  {prefill}  {decode}".rstrip() for label, prefill, decode in rows]
    return "\n".join([f"tokens per step, in shares of {int(prefills.sum()):,} steps:", *lines])


def _counts(tokens: Ints) -> Ints:
    """How many steps computed so many tokens, by row."""
    return np.bincount(np.searchsorted(EDGES, tokens, side="right") - 1, minlength=len(EDGES) - 1)


def _cells(counts: Floats) -> list[str]:
    """What each row says of its count: a bar and a percentage, all of one width; blank for no step."""
    shares = counts / (counts.sum() or 1.0)
    largest = float(shares[1:].max(initial=0)) or 1.0
    bars = ["", *(_bar(share / largest) for share in shares[1:].tolist())]
    told = [f"{share:.1%}" if share else "" for share in shares.tolist()]
    return [f"{bar:<{WIDTH}} {percent:>6}" for bar, percent in zip(bars, told, strict=True)]


def _bar(share: float) -> str:
    """A bar of this share of the whole width; whatever is there at all shows."""
    eighths = max(1, round(8 * WIDTH * share)) if share else 0
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
