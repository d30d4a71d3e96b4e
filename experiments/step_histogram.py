"""How many tokens steps computed, as a histogram in text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from experiments.columns import Floats, Ints, StepColumns

#: Characters that a bar has at most, and what fills one by eighths.
WIDTH, EIGHTHS = 24, " ▏▎▍▌▋▊▉█"


def step_histogram(steps: StepColumns) -> str:
    """A row a doubling of tokens, and in it the share of steps that computed so many tokens of prompts, or of decodes.

    Bars of a column are to one scale, its own. Steps without any such token are most of a run as a rule; their row has
    no bar, so that the others can be read.
    """
    columns = {"prefill": steps.num_prefill_tokens, "decode": steps.num_decode_tokens}
    largest = max(int(tokens.max(initial=0)) for tokens in columns.values())
    edges = np.array([0, *(1 << power for power in range(largest.bit_length() + 1))])
    labels = [f"{low:,}" if high - low == 1 else f"{low:,}-{high - 1:,}" for low, high in pairwise(edges.tolist())]
    cells = [_cells(tokens, edges) for tokens in columns.values()]
    width = max(map(len, [*labels, "tokens"]))
    rows = [("tokens", *(f"{name:<{len(cells[0][0])}}" for name in columns)), *zip(labels, *cells, strict=True)]
    lines = [f"{label:>{width}}  {prefill}  {decode}".rstrip() for label, prefill, decode in rows]
    return "\n".join([f"tokens per step, in shares of {len(steps):,} steps:", *lines])


def _cells(tokens: Ints, edges: Ints) -> list[str]:
    """What each row says of these tokens: a bar and a percentage, all of one width; blank for no step."""
    counts = np.bincount(np.searchsorted(edges, tokens, side="right") - 1, minlength=len(edges) - 1)
    shares: Floats = counts / max(1, len(tokens))
    largest = float(shares[1:].max(initial=0)) or 1.0
    bars = ["", *(_bar(share / largest) for share in shares[1:].tolist())]
    told = [f"{share:.1%}" if share else "" for share in shares.tolist()]
    return [f"{bar:<{WIDTH}} {percent:>6}" for bar, percent in zip(bars, told, strict=True)]


def _bar(share: float) -> str:
    """A bar of this share of the whole width; whatever is there at all shows."""
    eighths = max(1, round(8 * WIDTH * share)) if share else 0
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
