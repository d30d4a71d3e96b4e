"""What a step's attention needs to know, and what a backend does with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class AttentionMetadata:
    """Where the tokens of a step's flat batch belong. All requests' tokens lie one after the other.

    Slot s of the cache is place s % block_size of block s // block_size.
    """

    #: Prefix sums of the requests' tokens in this step; int32 [num_seqs + 1].
    query_start: torch.Tensor
    #: Tokens of each request in the cache once this step's are written; int32 [num_seqs].
    context_lens: torch.Tensor
    #: Block ids of each request, in order; int32 [num_seqs, max_blocks]. Entries past its last block are never read.
    block_tables: torch.Tensor
    #: Where each token's key and value go; int64 [num_tokens].
    slot_mapping: torch.Tensor
    #: The first two again, for loops in Python.
    query_lens: Sequence[int]
    context_lens_list: Sequence[int]
    block_size: int
    #: Leading requests that compute exactly one token, for backends that treat these apart; 0 is always right.
    num_decodes: int = 0

    @classmethod
    def build(
        cls,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
    ) -> AttentionMetadata:
        """From plain lists, one entry a request. For tests and profiles; the runner fills its own buffers."""
        longest = max(len(table) for table in block_tables)
        slots = [
            table[position // block_size] * block_size + position % block_size
            for query, context, table in zip(query_lens, context_lens, block_tables, strict=True)
            for position in range(context - query, context)
        ]
        decodes = next((i for i, query in enumerate(query_lens) if query != 1), len(query_lens))
        return cls(
            query_start=torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32),
            context_lens=torch.tensor(context_lens, dtype=torch.int32),
            block_tables=torch.tensor(
                [list(table) + [0] * (longest - len(table)) for table in block_tables], dtype=torch.int32
            ),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            query_lens=list(query_lens),
            context_lens_list=list(context_lens),
            block_size=block_size,
            num_decodes=decodes,
        )


class AttentionBackend(Protocol):
    """One way to store keys and values and to attend to them."""

    def kv_cache_shape(self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """The shape of one layer's cache; its element type is the model's.

        Raises:
            InputError: this backend cannot work with blocks of that size.
        """

    def plan(self, metadata: AttentionMetadata) -> Any:
        """What all layers of a step share, made once a step and handed to `write` and `attend`."""

    def write(self, kv_cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Any) -> None:
        """Store the step's keys and values, each [num_tokens, num_kv_heads, head_dim], at their slots."""

    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, plan: Any, scale: float) -> torch.Tensor:
        """Causal attention of each query [num_tokens, num_heads, head_dim] over its request's context.

        The last query of a request sees its whole context, the one before it one token less, and so on. Query heads
        share key heads in equal consecutive groups. Returns [num_tokens, num_heads * head_dim].
        """
