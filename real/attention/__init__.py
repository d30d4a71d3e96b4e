"""Attention over a paged KV cache, behind one small interface.

A backend owns the layout of the cache. Each layer of each step writes the keys and values of the step's tokens at their
slots, then lets every token attend to its own request's context through the block table. Backends for GPUs (Triton,
flash-attn) take their place beside the CPU's.
"""

from __future__ import annotations

from real.attention.interface import AttentionBackend, AttentionMetadata

__all__ = ["AttentionBackend", "AttentionMetadata"]
