"""Paged attention in bfloat16 through compiled kernels: one call for any mixture of prompts, chunks and decodes.

The cache is laid out so that the kernels' loops read whole vectors: neighbouring dimensions of a key in pairs, keys
side by side; neighbouring keys' values in pairs, dimensions side by side. Compiled layers (`real.ops.native_ops`) reach
the same kernels from within; this is their entrance for whatever wants attention alone.
"""

from __future__ import annotations

import ctypes

import torch

from real.attention.interface import AttentionMetadata
from real.ops.native import StepFields
from schedulers.errors import InputError

#: Keys that one vector holds.
_LANES = 16


class NativeAttention:
    """Cache layout [num_blocks, num_kv_heads, 2 (keys, values), block_size * head_dim], as in attention.h."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self._kernels = kernels

    def kv_cache_shape(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """See `AttentionBackend`."""
        if block_size % _LANES:
            raise InputError(f"block_size={block_size}; in bfloat16 on CPUs it must be a multiple of {_LANES}")
        return num_blocks, num_kv_heads, 2, block_size * head_dim

    def plan(self, metadata: AttentionMetadata) -> StepFields:
        """See `AttentionBackend`."""
        return StepFields(
            tokens=len(metadata.slot_mapping),
            sequences=len(metadata.query_lens),
            max_blocks=metadata.block_tables.stride(0),
            block_size=metadata.block_size,
            threads=torch.get_num_threads(),
            query_start=metadata.query_start,
            context_lens=metadata.context_lens,
            block_tables=metadata.block_tables,
            slots=metadata.slot_mapping,
        )

    def write(self, kv_cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: StepFields) -> None:
        """See `AttentionBackend`. Keys and values must have the same strides."""
        _, heads, head_dim = key.shape
        self._kernels.write_cache(
            *(key.data_ptr(), value.data_ptr(), key.stride(0)), kv_cache.data_ptr(), heads, head_dim, plan.address
        )

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, plan: StepFields, scale: float) -> torch.Tensor:
        """See `AttentionBackend`."""
        tokens, heads, head_dim = query.shape
        output = query.new_empty((tokens, heads * head_dim))
        self._kernels.attend_cache(
            *(query.data_ptr(), query.stride(0), heads, output.data_ptr()),
            *(kv_cache.data_ptr(), kv_cache.shape[1], head_dim, plan.address, scale),
        )
        return output
