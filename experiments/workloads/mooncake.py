"""Traces that say what prompts have in common, as Mooncake published them.

R. Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025; the files are in
github.com/kvcache-ai/Mooncake. Other tools write the same format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from experiments.workloads import checks
from experiments.workloads.rows import json_rows, seconds, tokens, whole_numbers
from experiments.workloads.trace import Trace, TraceRow
from schedulers.errors import InputError

_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


@dataclass(frozen=True, kw_only=True)
class MooncakeTrace(Trace):
    """A file of JSON lines, plain or gzip: timestamp (ms), input_length, output_length (tokens), hash_ids.

    A hash id names a block of `trace_block_size` tokens together with all before it in the prompt, so that equal ids
    mean equal prefixes; the last one may stand for a part of a block. Reseeding redraws the arrivals but keeps the
    order of the rows, because a conversation's turns follow each other.
    """

    trace_block_size: int = 512

    order_matters: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("workload.trace_block_size", self.trace_block_size)

    @property
    def block_tokens(self) -> int:
        """Tokens that one hash id covers."""
        return self.trace_block_size

    def read(self) -> Iterator[TraceRow]:
        """The rows of the file."""
        for row in json_rows(self.path, self.with_class_column(_KEYS), "a Mooncake trace"):
            time, prompt, output, ids, *name = row.cells
            time_s = seconds(row, "timestamp", time, "milliseconds", 1000)
            num_prompt_tokens = tokens(row, "input_length", prompt)
            num_output_tokens = tokens(row, "output_length", output)
            hash_ids = whole_numbers(row, "hash_ids", ids)
            num_blocks = -(-num_prompt_tokens // self.trace_block_size)
            if len(hash_ids) != num_blocks:
                raise InputError(
                    f"{row.where}, hash_ids: {len(hash_ids)} ids, but {num_prompt_tokens} prompt tokens are "
                    f"{num_blocks} blocks of workload.trace_block_size={self.trace_block_size} tokens"
                )
            yield TraceRow(
                row.line,
                time_s,
                num_prompt_tokens,
                num_output_tokens,
                hash_ids,
                class_name="".join(map(str, name)),
            )
