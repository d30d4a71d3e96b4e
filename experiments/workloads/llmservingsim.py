"""Workloads of LLMServingSim, whose prompts are there token by token.

J. Cho et al., "LLMServingSim: A HW/SW Co-Simulation Infrastructure for LLM Inference Serving at Scale", IISWC 2024; the
format is that of version 2.0, github.com/casys-kaist/LLMServingSim.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from experiments.workloads.rows import json_rows, seconds, tokens, whole_numbers
from experiments.workloads.trace import Trace, TraceRow
from schedulers.errors import InputError

_KEYS = ("arrival_time_ns", "input_toks", "output_toks", "input_tok_ids")


@dataclass(frozen=True, kw_only=True)
class LLMServingSimTrace(Trace):
    """A file of JSON lines, plain or gzip: arrival_time_ns, input_toks, output_toks, input_tok_ids; others are ignored.

    Blocks of prompts are named by the tokens in them and before them, so that prompts share what they have in common. A
    real run sends these tokens, modulo the size of its model's vocabulary.
    """

    order_matters: ClassVar[bool] = True

    def read(self) -> Iterator[TraceRow]:
        """The rows of the file."""
        for row in json_rows(self.path, self.with_class_column(_KEYS), "an LLMServingSim workload"):
            time, prompt, output, ids, *name = row.cells
            time_s = seconds(row, "arrival_time_ns", time, "nanoseconds", 1e9)
            num_prompt_tokens = tokens(row, "input_toks", prompt)
            token_ids = whole_numbers(row, "input_tok_ids", ids)
            if not all(0 <= token_id < 2**31 for token_id in token_ids):
                raise row.refuse("input_tok_ids", ids, "a list of token ids")
            if len(token_ids) != num_prompt_tokens:
                raise InputError(
                    f"{row.where}, input_tok_ids: {len(token_ids)} ids, but input_toks={num_prompt_tokens}"
                )
            yield TraceRow(
                row.line,
                time_s,
                num_prompt_tokens,
                tokens(row, "output_toks", output),
                token_ids=token_ids,
                class_name="".join(map(str, name)),
            )
