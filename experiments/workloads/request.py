"""What a workload is made of: requests as their clients send them, and how long each output will truly be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from schedulers.errors import InputError
from schedulers.request import SLO


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload. It is data of the world, not of the scheduler: the output's length is in it."""

    request_id: str
    #: Seconds from the start of the run.
    arrival_s: float
    num_prompt_tokens: int
    #: How long the output will be, EOS included; the world knows it, the scheduler must not. At least 1.
    num_output_tokens: int
    #: Most tokens the client asks for; None: it sets no limit of its own.
    max_tokens: int | None = None
    #: Lower is more urgent.
    priority: int = 0
    client_id: str = ""
    session_id: str = ""
    slo: SLO | None = None
    #: Name of the request's class, "" in a workload without classes.
    class_name: str = ""
    #: What the prompt says, as ids of its blocks of `trace_block_tokens` tokens, the last one perhaps partly filled.
    #: Equal ids stand for equal prompts up to the end of that block. Empty where the content is unknown.
    hash_ids: tuple[int, ...] = ()
    trace_block_tokens: int = 0
    #: The file the request was read from and its line there, counted from 1; "" and 0 if it was drawn.
    trace_path: str = ""
    trace_line: int = 0

    @property
    def name(self) -> str:
        """What a message calls this request: its id, and its place in the trace if it came from one."""
        place = f" ({self.trace_path}, line {self.trace_line})" if self.trace_path else ""
        return f"request {self.request_id!r}{place}"

    def block_hashes(self, block_size: int) -> list[int]:
        """Hashes of the prompt's full KV blocks, in order; none where its content is unknown.

        A trace block of id h covers m = trace_block_tokens / block_size KV blocks; the k-th of them gets the hash
        h * m + k, so that hashes are equal where ids are. Two prompts that part within a trace block have different ids
        for all of it: reuse is seen at the grain of the trace, which is an underestimate at the grain of KV blocks.

        Args:
            block_size: tokens in a KV block; it must divide the trace's block.

        Raises:
            InputError: it does not.
        """
        if not self.hash_ids:
            return []
        parts, rest = divmod(self.trace_block_tokens, block_size)
        if rest:
            raise InputError(
                f"a KV block of {block_size} tokens does not divide the blocks of {self.trace_block_tokens} tokens by "
                f"which {self.trace_path or 'the workload'} knows its prompts; use a block size that does"
            )
        num_full = self.num_prompt_tokens // block_size
        hashes = [hash_id * parts + part for hash_id in self.hash_ids for part in range(parts)]
        return hashes[:num_full]


class Workload(Protocol):
    """A source of requests. Implementations are frozen dataclasses that Hydra builds from conf/workload."""

    @property
    def too_long(self) -> str:
        """What `check_lengths` does with requests beyond the model's limit: "error" or "drop"."""
        ...

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The requests, by arrival. The same seed gives the same requests, in any process, whoever schedules them.

        Raises:
            InputError: the workload cannot be made as configured.
        """
        ...

    def describe(self) -> str:
        """One line for reports."""
        ...
