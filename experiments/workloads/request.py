"""What a workload is made of: requests as their clients send them, and how long each output will truly be."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from schedulers.request import SLO

#: More KV blocks than any prompt has: a block's hash is its trace block's id times this, plus its place in the prompt.
_MOST_BLOCKS = 2**20


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload. It is data of the world, not of the scheduler: the output's length is in it."""

    request_id: str
    #: Seconds from the start of the run; 0 for a request that follows another.
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
    #: Id of an earlier request of the workload: this one arrives `think_s` seconds after that has ended. "": it arrives
    #: at `arrival_s`, whatever becomes of others.
    follows: str = ""
    think_s: float = 0.0
    #: Name of the request's class, "" in a workload without classes.
    class_name: str = ""
    #: What the prompt says, as ids of its blocks of `trace_block_tokens` tokens, the last one perhaps partly filled.
    #: Equal ids stand for equal prompts up to the end of that block. Empty where the content is unknown.
    hash_ids: tuple[int, ...] = ()
    trace_block_tokens: int = 0
    #: What follows those blocks, the output included: requests of the same id agree in it as far as both have any, so
    #: that each turn of a session repeats all before it. "": it is like nothing else.
    content_id: str = ""
    #: The prompt itself, where it is known; then `hash_ids` and `content_id` are empty.
    token_ids: tuple[int, ...] = ()
    #: The file the request was read from and its line there, counted from 1; "" and 0 if it was drawn.
    trace_path: str = ""
    trace_line: int = 0

    @property
    def name(self) -> str:
        """What a message calls this request: its id, and its place in the trace if it came from one."""
        place = f" ({self.trace_path}, line {self.trace_line})" if self.trace_path else ""
        return f"request {self.request_id!r}{place}"

    @property
    def num_answer_tokens(self) -> int:
        """How long the output will be, as far as the client lets it grow."""
        return self.num_output_tokens if self.max_tokens is None else min(self.num_output_tokens, self.max_tokens)

    def block_hashes(self, block_size: int) -> list[int]:
        """Hashes of the prompt's full KV blocks of which the content is known, in order.

        Where there are tokens, a block is named by those in it and before it (64 bits of a chain of SHA-256 hashes).

        An id stands for all of the prompt up to the end of its trace block, so a KV block of `block_size` tokens is
        named by the id of the trace block that its last token is in, and by its own place. Two prompts that part within
        a trace block have different ids for all of it: reuse is seen at the grain of the trace, which is an
        underestimate at the grain of KV blocks.
        """
        if self.token_ids:
            return _chain(self.token_ids, block_size)
        num_named_tokens = min(self.num_prompt_tokens, len(self.hash_ids) * self.trace_block_tokens)
        return [
            self.hash_ids[(end - 1) // self.trace_block_tokens] * _MOST_BLOCKS + end // block_size
            for end in range(block_size, num_named_tokens + 1, block_size)
        ]


def _chain(token_ids: tuple[int, ...], block_size: int) -> list[int]:
    chain, hashes = hashlib.sha256(), []
    for end in range(block_size, len(token_ids) + 1, block_size):
        chain.update(array("q", token_ids[end - block_size : end]).tobytes())
        hashes.append(int.from_bytes(chain.digest()[:8]))
    return hashes


class Workload(Protocol):
    """A source of requests. Implementations are frozen dataclasses that Hydra builds from conf/workload."""

    @property
    def too_long(self) -> str:
        """What `check_lengths` does with requests beyond the model's limit: "error" or "drop"."""
        ...

    def requests(self, seed: int) -> Sequence[WorkloadRequest]:
        """The requests, by arrival; those that follow others stand anywhere after them.

        The same seed gives the same requests, in any process, whoever schedules them: when one arrives that follows
        another depends on the run, and nothing else of it does.

        Raises:
            InputError: the workload cannot be made as configured.
        """
        ...

    def describe(self) -> str:
        """One line for reports."""
        ...
