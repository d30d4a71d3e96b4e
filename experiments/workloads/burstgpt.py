"""The BurstGPT traces: four months of ChatGPT and GPT-4 at a university, 5.3 million requests.

Y. Wang et al., "BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems", arXiv 2401.17644, 2024;
the files are in github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.workloads import checks
from experiments.workloads.rows import csv_rows, seconds, tokens
from experiments.workloads.trace import Trace, TraceRow
from schedulers.errors import InputError

_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")


@dataclass(frozen=True, kw_only=True)
class BurstGPTTrace(Trace):
    """A CSV file, plain or gzip: Timestamp (seconds), Model, Request tokens, Response tokens, Total tokens, Log Type.

    Only the times and the two numbers of tokens are read, and `class_column`, such as Model or Log Type. A row of a
    request that failed has no response tokens (or no request tokens); the files named `without_fails` have none.
    `failed` says what to do with one: "drop" leaves it out, "error" refuses the file.
    """

    failed: str = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("workload.failed", self.failed, ("drop", "error"))

    def read(self) -> Iterator[TraceRow]:
        """The rows of the file."""
        is_empty, least = True, int(self.failed == "error")
        for row in csv_rows(self.path, self.with_class_column(_COLUMNS), "a BurstGPT trace"):
            time, prompt, output, *name = row.cells
            time_s = seconds(row, _COLUMNS[0], time, "seconds", 1)
            num_prompt_tokens = tokens(row, _COLUMNS[1], prompt, least=least)
            num_output_tokens = tokens(row, _COLUMNS[2], output, least=least)
            if num_prompt_tokens and num_output_tokens:
                is_empty = False
                yield TraceRow(row.line, time_s, num_prompt_tokens, num_output_tokens, class_name="".join(name))
        if is_empty:
            raise InputError(f"{self.path}: no request of the file has both request tokens and response tokens")
