"""How many tokens steps computed, as a histogram in text."""

from __future__ import annotations

import numpy as np

from experiments.columns import Floats, Ints, StepColumns

#: Characters that a bar has at most, and what one is filled with by eighths.
WIDTH, EIGHTHS = 24, " ▏▎▍▌▋▊▉█"


def step_histogram(steps: StepColumns) -> str:
    """A row a doubling of tokens, and in it the share of steps that computed so many tokens of prompts, or of decodes.

    Rows above the largest number of tokens of any step are left out. Bars of one column are to one scale, its own.
    """
    largest = int(max(steps.num_prefill_tokens.max(initial=0), steps.num_decode_tokens.max(initial=0)))
    edges = np.array([0, *(1 << power for power in range(largest.bit_length() + 1))])
    labels = ["0", *(_span(low, high) for low, high in zip(edges[1:-1], edges[2:], strict=True))]
    columns = {name: _shares(tokens, edges) for name, tokens in
               (("prefill", steps.num_prefill_tokens), ("decode", steps.num_decode_tokens))}  # fmt: skip
    first = max(map(len, [*labels, "tokens"]))
    lines = [f"{'tokens':>{first}}" + "".join(f"  {name:<{WIDTH + 8}}" for name in columns).rstrip()]
    for row, label in enumerate(labels):
        cells = [f"  {_bar(shares[row] / (shares.max() or 1.0)):<{WIDTH}}{shares[row]:>7.1%}" if shares[row] else
                 " " * (WIDTH + 10) for shares in columns.values()]  # fmt: skip
        lines.append(f"{label:>{first}}{' '.join(cells)}".rstrip())
    return "\n".join([f"tokens per step, as shares of {len(steps):,} steps:", *lines])


def _shares(tokens: Ints, edges: Ints) -> Floats:
    counts = np.bincount(np.searchsorted(edges, tokens, side="right") - 1, minlength=len(edges) - 1)
    return counts / max(1, len(tokens))


def _span(low: int, high: int) -> str:
    return f"{low:,}" if high - low == 1 else f"{low:,}-{high - 1:,}"


def _bar(share: float) -> str:
    """A bar of this share of the whole width; whatever is there at all shows."""
    eighths = max(1, round(8 * WIDTH * share))
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
