"""Traces that say what prompts have in common, as Mooncake published them.

R. Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025; the files are in
github.com/kvcache-ai/Mooncake. Other tools write the same format.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from experiments.workloads import checks
from experiments.workloads.files import read_text
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

    def read(self) -> list[TraceRow]:
        """All rows of the file."""
        lines = read_text(self.path).split("\n")
        return [self._row(number, line) for number, line in enumerate(lines, start=1) if line.strip()]

    def _row(self, number: int, line: str) -> TraceRow:
        where = f"{self.path}, line {number}"
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: this is not JSON ({error}): {line[:60]!r}") from None
        if not isinstance(item, dict):
            raise InputError(f"{where}: this is not a JSON object: {line[:60]!r}")
        missing = [key for key in _KEYS if key not in item]
        if missing:
            raise InputError(
                f"{where}: no {' and '.join(missing)}; the line has {', '.join(map(str, item)) or 'nothing'}, "
                f"a Mooncake trace has {', '.join(_KEYS)}"
            )
        time_ms = item["timestamp"]
        if type(time_ms) not in (int, float) or not math.isfinite(time_ms):
            raise InputError(f"{where}, timestamp: {_short(time_ms)} is not a number of milliseconds")
        num_prompt_tokens = _tokens(where, item, "input_length")
        num_output_tokens = _tokens(where, item, "output_length")
        hash_ids = item["hash_ids"]
        if not isinstance(hash_ids, list) or not all(type(hash_id) is int for hash_id in hash_ids):
            raise InputError(f"{where}, hash_ids: {_short(hash_ids)} is not a list of whole numbers")
        num_blocks = -(-num_prompt_tokens // self.trace_block_size)
        if len(hash_ids) != num_blocks:
            raise InputError(
                f"{where}, hash_ids: {len(hash_ids)} ids, but {num_prompt_tokens} prompt tokens are {num_blocks} "
                f"blocks of workload.trace_block_size={self.trace_block_size} tokens"
            )
        return TraceRow(number, time_ms / 1000, num_prompt_tokens, num_output_tokens, tuple(hash_ids))


def _tokens(where: str, item: dict[str, Any], key: str) -> int:
    value = item[key]
    if type(value) is not int or value < 1:
        raise InputError(f"{where}, {key}: {_short(value)} is not a whole number of tokens, at least 1")
    return value


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."
