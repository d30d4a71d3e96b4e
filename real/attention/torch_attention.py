"""Paged attention in plain torch: correct on any device and for any type, and quick enough without a compiler.

Decodes are gathered from the cache in a few groups of similar lengths, so that a batch costs a handful of calls
whatever its size, and one long context does not pad all others; prompts and chunks are attended to one by one, where
the arithmetic outweighs the calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from real.attention.interface import AttentionMetadata


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes of similar context: their rows in the batch, the slots of their contexts, and which of these count."""

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A request with several tokens: its rows in the batch, the slots of its context, and who sees what."""

    rows: slice
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Plan:
    slot_mapping: torch.Tensor
    decodes: list[_DecodeGroup]
    chunks: list[_Chunk]


class TorchAttention:
    """Cache layout [2 (keys, values), num_blocks, block_size, num_kv_heads, head_dim]."""

    def kv_cache_shape(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """See `AttentionBackend`."""
        return 2, num_blocks, block_size, num_kv_heads, head_dim

    def plan(self, metadata: AttentionMetadata) -> _Plan:
        """See `AttentionBackend`."""
        slots = _context_slots(metadata)
        starts = metadata.query_start.tolist()
        decodes, chunks = [], []
        for index, (query, context) in enumerate(zip(metadata.query_lens, metadata.context_lens_list, strict=True)):
            if query == 1:
                decodes.append((context, index, starts[index]))
                continue
            mask = None
            if context > query:
                mask = torch.ones(query, context, dtype=torch.bool, device=slots.device).tril_(context - query)
            chunks.append(_Chunk(slice(starts[index], starts[index] + query), slots[index, :context], mask))
        return _Plan(metadata.slot_mapping, _group(decodes, slots, metadata.context_lens), chunks)

    def write(self, kv_cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: _Plan) -> None:
        """See `AttentionBackend`."""
        keys, values = kv_cache.flatten(1, 2)
        keys.index_copy_(0, plan.slot_mapping, key)
        values.index_copy_(0, plan.slot_mapping, value)

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, plan: _Plan, scale: float) -> torch.Tensor:
        """See `AttentionBackend`."""
        keys, values = kv_cache.flatten(1, 2)
        num_tokens, num_heads, head_dim = query.shape
        num_kv_heads = keys.shape[1]
        output = query.new_empty(num_tokens, num_heads, head_dim)
        for group in plan.decodes:
            # The query heads that share a key head stand where a prompt's tokens would.
            q = query[group.rows].view(-1, num_kv_heads, num_heads // num_kv_heads, head_dim)
            k, v = keys[group.slots].transpose(1, 2), values[group.slots].transpose(1, 2)
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=group.mask, scale=scale)
            output[group.rows] = attended.view(-1, num_heads, head_dim)
        for chunk in plan.chunks:
            q = query[chunk.rows].transpose(0, 1).unsqueeze(0)
            k, v = (cached[chunk.slots].transpose(0, 1).unsqueeze(0) for cached in (keys, values))
            attended = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None, scale=scale, enable_gqa=True
            )
            output[chunk.rows] = attended[0].transpose(0, 1)
        return output.flatten(1)


def _context_slots(metadata: AttentionMetadata) -> torch.Tensor:
    """Slots of every request's context, padded to the longest; int64 [num_seqs, max_blocks * block_size]."""
    places = torch.arange(metadata.block_size, device=metadata.block_tables.device)
    first = metadata.block_tables.long().unsqueeze(-1) * metadata.block_size
    return (first + places).flatten(1)


def _group(decodes: list[tuple[int, int, int]], slots: torch.Tensor, context_lens: torch.Tensor) -> list[_DecodeGroup]:
    """Groups of decodes, given as (context, index, row), in which no context is less than 3/4 of the longest."""
    groups: list[_DecodeGroup] = []
    decodes = sorted(decodes, reverse=True)
    while decodes:
        longest = decodes[0][0]
        size = next((i for i, (context, _, _) in enumerate(decodes) if context < 0.75 * longest), len(decodes))
        group, decodes = decodes[:size], decodes[size:]
        indices = torch.tensor([index for _, index, _ in group], device=slots.device)
        rows = torch.tensor([row for _, _, row in group], device=slots.device)
        group_slots, mask = slots[indices, :longest], None
        if group[-1][0] < longest:
            inside = torch.arange(longest, device=slots.device) < context_lens[indices].unsqueeze(-1)
            # Never read a slot that nothing was written to: 0 * NaN is NaN.
            group_slots = torch.where(inside, group_slots, group_slots[:, :1])
            mask = inside.view(size, 1, 1, longest)
        groups.append(_DecodeGroup(rows, group_slots, mask))
    return groups
