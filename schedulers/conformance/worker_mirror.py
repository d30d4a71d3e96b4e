"""A model worker reduced to what a scheduler can get wrong: block tables, positions, and what lies in which slot.

It knows only what a `SchedulerOutput` tells, as a real worker does, and computes "keys and values" that depend on every
token before them; so a stale block, a wrong prefix hit or a lost message shows as different content.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schedulers.conformance.rules import BrokenRule, Rule
from schedulers.request import Request
from schedulers.step import SchedulerOutput

#: Sampled tokens are 0 ... VOCABULARY - 1; so few that equal prompts often get equal outputs.
VOCABULARY = 6


@dataclass
class Row:
    """What the worker holds of one request."""

    tokens: list[int]
    #: Content of each position: a digest of salt and all tokens up to it.
    digests: list[int]
    block_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0

    def append(self, token: int) -> None:
        """Learn the next token."""
        self.tokens.append(token)
        self.digests.append(zlib.crc32(token.to_bytes(8, "little", signed=True), self.digests[-1]))

    def truncate(self, num_tokens: int) -> None:
        """Forget what was sampled beyond `num_tokens`: the scheduler dropped it."""
        del self.tokens[num_tokens:], self.digests[num_tokens + 1 :]


class WorkerMirror:
    """Executes steps.

    Args:
        num_blocks: KV blocks.
        block_size: slots in a block.
        request_of: the request of an id, asked only for its prompt and salt when it is new.
        prompt_of: the true prompt of a request (in a simulation the request itself may not have one).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        request_of: Callable[[str], Request],
        prompt_of: Callable[[Request], Sequence[int]],
    ) -> None:
        self.block_size = block_size
        self.rows: dict[str, Row] = {}
        self.slots = [[0] * block_size for _ in range(num_blocks)]
        self._request_of = request_of
        self._prompt_of = prompt_of

    def execute(self, output: SchedulerOutput, num_to_sample: Callable[[str], int]) -> dict[str, list[int]]:
        """Take the difference in, compute, verify every block table, and sample for those that are due."""
        self._take_in(output)
        self._compute(output.num_scheduled_tokens)
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            self.rows[request_id].num_computed_tokens += num_tokens
        self._verify()
        sampled: dict[str, list[int]] = {}
        for request_id in output.sampled_ids:
            row = self.rows[request_id]
            row.truncate(row.num_computed_tokens)
            sampled[request_id] = []
            for _ in range(num_to_sample(request_id)):
                row.append(next_token(row.digests[-1]))
                sampled[request_id].append(row.tokens[-1])
        return sampled

    def _take_in(self, output: SchedulerOutput) -> None:
        for request_id in output.finished_ids:
            self._row(request_id, "is said to have ended")
            del self.rows[request_id]
        for request_id in output.preempted_ids:
            row = self._row(request_id, "is preempted")
            if not row.block_ids:
                raise BrokenRule(Rule.PREEMPTION, f"{request_id} is preempted, and does not run")
            row.block_ids, row.num_computed_tokens = [], 0
        for new in output.new_requests:
            if new.request_id in self.rows:
                raise BrokenRule(Rule.TOKENS, f"workers are told of {new.request_id} as new, and know it already")
            request = self._request_of(new.request_id)
            row = Row([], [zlib.crc32(request.cache_salt.encode())])
            for token in self._prompt_of(request):
                row.append(token)
            row.block_ids, row.num_computed_tokens = list(new.block_ids), new.num_computed_tokens
            self.rows[new.request_id] = row
        for resumed in output.resumed_requests:
            row = self._row(resumed.request_id, "comes back")
            if row.block_ids:
                raise BrokenRule(Rule.PREEMPTION, f"{resumed.request_id} comes back, and was never gone")
            row.block_ids, row.num_computed_tokens = list(resumed.block_ids), resumed.num_computed_tokens
        for request_id, block_ids in output.new_block_ids.items():
            if request_id not in output.num_scheduled_tokens or not block_ids:
                raise BrokenRule(Rule.BLOCKS, f"{request_id} is handed the blocks {block_ids} and computes nothing")
            self._row(request_id, "is handed blocks").block_ids += block_ids
        for request_id, row in self.rows.items():
            if not all(0 <= block_id < len(self.slots) for block_id in row.block_ids):
                raise BrokenRule(Rule.BLOCKS, f"{request_id} has the blocks {row.block_ids} of {len(self.slots)}")

    def _row(self, request_id: str, what: str) -> Row:
        if request_id not in self.rows:
            raise BrokenRule(Rule.TOKENS, f"{request_id} {what}, and workers were never told of it")
        return self.rows[request_id]

    def _compute(self, num_scheduled_tokens: dict[str, int]) -> None:
        """Write the slots of all tokens of the step; nobody may write what another request writes or wrote."""
        written: dict[tuple[int, int], str] = {}
        for request_id, num_tokens in num_scheduled_tokens.items():
            row = self._row(request_id, "is to be computed")
            end, room = row.num_computed_tokens + num_tokens, len(row.block_ids) * self.block_size
            if end > len(row.tokens):
                raise BrokenRule(Rule.BATCH, f"{request_id} is to compute {end} tokens and has {len(row.tokens)}")
            if end > room:
                raise BrokenRule(Rule.BLOCKS, f"{request_id} is to compute {end} tokens in blocks that hold {room}")
            for position in range(row.num_computed_tokens, end):
                block_id, slot = row.block_ids[position // self.block_size], position % self.block_size
                other = written.setdefault((block_id, slot), request_id)
                if other != request_id:
                    raise BrokenRule(
                        Rule.BLOCKS, f"{other} and {request_id} both write slot {slot} of block {block_id}"
                    )
                self.slots[block_id][slot] = row.digests[position + 1]

    def _verify(self) -> None:
        for request_id, row in self.rows.items():
            for position in range(row.num_computed_tokens):
                block_id, slot = row.block_ids[position // self.block_size], position % self.block_size
                if self.slots[block_id][slot] != row.digests[position + 1]:
                    raise BrokenRule(
                        Rule.BLOCKS, f"block {block_id} slot {slot} does not hold token {position} of {request_id}"
                    )


def next_token(digest: int) -> int:
    """The token that follows a sequence of this digest; each depends on all before it."""
    return (digest >> 7) % VOCABULARY


def continuation(request: Request, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The first `num_tokens` tokens that must follow `prompt`, whatever was batched, preempted or found in a cache."""
    row = Row([], [zlib.crc32(request.cache_salt.encode())])
    for token in prompt:
        row.append(token)
    for _ in range(num_tokens):
        row.append(next_token(row.digests[-1]))
    return row.tokens[len(prompt) :]
