"""Batches to price."""

from __future__ import annotations

from schedulers.step import BatchShape


def batch(*prefills: tuple[int, int], decodes: list[int] | None = None) -> BatchShape:
    """A step of these prefills (tokens, context) and decode contexts, in which every request samples."""
    decodes = decodes or []
    return BatchShape(list(prefills), decodes, len(prefills) + len(decodes))


#: Each step next in its list computes no less than the one before, over no less context.
GROWING = {
    "prefill tokens": [batch((tokens, 0)) for tokens in (16, 64, 256, 300, 512, 1000, 2000, 4096)],
    "prefill context": [batch((512, context)) for context in (0, 100, 1000, 4000, 16000, 30000)],
    "decodes": [batch(decodes=[1000] * number) for number in (1, 16, 32, 64, 128, 256, 512)],
    "decode context": [batch(decodes=[context] * 32) for context in (16, 500, 1000, 4000, 16000, 30000)],
    "decodes beside a prefill": [batch((512, 0), decodes=[1000] * number) for number in (0, 1, 10, 64, 128)],
    "prefills": [batch(*[(300, 100)] * number, decodes=[1000] * 8) for number in (0, 1, 2, 3, 5)],
}
