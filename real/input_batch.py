"""The requests a worker knows, as arrays that steps change a little, and each step's flat batch made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedulers.errors import SchedulerError
from schedulers.step import SchedulerOutput

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


@dataclass(slots=True)
class FlatBatch:
    """The tokens that a step computes, of all its requests one after another; decodes come first.

    Attributes:
        request_ids: the requests, in the order of their tokens.
        rows: their rows in the input batch.
        num_decodes: how many of them, from the first, compute exactly one token.
        query_lens: tokens of each request.
        query_start: where each request's tokens start in the flat batch, and where the last ends.
        context_lens: tokens that the KV cache holds of each request once this step's are written.
        block_tables: [requests, most blocks of any]; beyond a request's own blocks the entries mean nothing.
        token_ids: [tokens], as are `positions` (in its request) and `slots` (block id x block size + place in block).
        samples: which requests, as indices, sample a token: those whose last known token is computed here.
    """

    request_ids: list[str]
    rows: Longs
    num_decodes: int
    query_lens: Longs
    query_start: Ints
    context_lens: Ints
    block_tables: Ints
    token_ids: Longs
    positions: Longs
    slots: Longs
    samples: Longs


class InputBatch:
    """What a worker keeps of its requests between steps: tokens, block tables, progress; one row each.

    A request keeps its row from its first step to its end, preemptions included; a step picks the rows it needs, and no
    row ever moves. The arrays grow as needed: rows by doubling, columns to the longest request seen.
    """

    def __init__(self, block_size: int) -> None:
        """Start empty, for blocks of `block_size` tokens."""
        self.block_size = block_size
        #: Prompt and output so far, [rows, columns].
        self.token_ids: Ints = np.zeros((8, 256), np.int32)
        self.num_prompt_tokens: Longs = np.zeros(8, np.int64)
        self.num_tokens: Longs = np.zeros(8, np.int64)
        self.num_computed_tokens: Longs = np.zeros(8, np.int64)
        self._block_ids: Ints = np.zeros((8, 16), np.int32)
        self._num_blocks: Longs = np.zeros(8, np.int64)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(7, -1, -1))

    def __len__(self) -> int:
        return len(self._row_of)

    def row(self, request_id: str) -> int:
        """The row of a request.

        Raises:
            SchedulerError: nobody told this worker of it.
        """
        try:
            return self._row_of[request_id]
        except KeyError:
            raise SchedulerError(f"request {request_id!r} is in a step, but this worker was never told of it") from None

    def update(self, output: SchedulerOutput) -> None:
        """Take over the difference that a step brings: first who ended, then who lost blocks, then who has more."""
        for request_id in output.finished_ids:
            row = self.row(request_id)
            del self._row_of[request_id]
            self._free_rows.append(row)
        for request_id in output.preempted_ids:
            self._num_blocks[self.row(request_id)] = 0
        for new in output.new_requests:
            if new.prompt_token_ids is None:
                raise SchedulerError(f"request {new.request_id!r} has no prompt tokens; a real model needs them")
            if new.request_id in self._row_of:
                raise SchedulerError(f"request {new.request_id!r} is new, but this worker knows it already")
            row = self._row_of[new.request_id] = self._take_row()
            num_tokens = len(new.prompt_token_ids)
            self._fit_tokens(num_tokens + 1)
            self.token_ids[row, :num_tokens] = new.prompt_token_ids
            self.num_prompt_tokens[row] = self.num_tokens[row] = num_tokens
            self._place(row, new.block_ids, new.num_computed_tokens)
        for resumed in output.resumed_requests:
            self._place(self.row(resumed.request_id), resumed.block_ids, resumed.num_computed_tokens)
        for request_id, block_ids in output.new_block_ids.items():
            self._append_blocks(self.row(request_id), block_ids)

    def flatten(self, output: SchedulerOutput) -> FlatBatch:
        """The flat batch of a step whose difference was taken over.

        Raises:
            SchedulerError: the step computes tokens that are not known yet, or samples where this worker would not.
        """
        row_of = self.row
        request_ids = list(output.num_scheduled_tokens)
        rows = np.array([row_of(request_id) for request_id in request_ids], np.int64)
        query_lens = np.array(list(output.num_scheduled_tokens.values()), np.int64)
        single = query_lens == 1
        num_decodes = int(np.count_nonzero(single))
        if not single[:num_decodes].all():
            order = np.argsort(~single, kind="stable")
            rows, query_lens = rows[order], query_lens[order]
            request_ids = [request_ids[index] for index in order]

        computed = self.num_computed_tokens[rows]
        context_lens = computed + query_lens
        num_left = self.num_tokens[rows] - context_lens
        samples = np.flatnonzero(num_left == 0)
        if len(samples) != len(output.sampled_ids) or num_left.min() < 0:
            raise SchedulerError(
                f"step {output.step}: the worker would sample for {[request_ids[index] for index in samples]}, "
                f"the scheduler for {output.sampled_ids}; they disagree about how many tokens there are"
            )
        ends = query_lens.cumsum()
        query_start = np.zeros(len(rows) + 1, np.int32)
        query_start[1:] = ends
        token_rows = np.repeat(rows, query_lens)
        positions = np.arange(int(ends[-1])) + np.repeat(context_lens - ends, query_lens)
        block_ids = self._block_ids[token_rows, positions // self.block_size]
        num_columns = -(-int(context_lens.max()) // self.block_size)
        return FlatBatch(
            request_ids=request_ids,
            rows=rows,
            num_decodes=num_decodes,
            query_lens=query_lens,
            query_start=query_start,
            context_lens=context_lens.astype(np.int32),
            block_tables=self._block_ids[rows, :num_columns],
            token_ids=self.token_ids[token_rows, positions].astype(np.int64),
            positions=positions,
            slots=block_ids * np.int64(self.block_size) + positions % self.block_size,
            samples=samples,
        )

    def advance(self, batch: FlatBatch, sampled: Longs) -> None:
        """Account for a step that was run: its tokens are computed, and `sampled` are the new ones of its `samples`."""
        self.num_computed_tokens[batch.rows] = batch.context_lens
        rows = batch.rows[batch.samples]
        places = self.num_tokens[rows]
        if len(rows):
            self._fit_tokens(int(places.max()) + 1)
        self.token_ids[rows, places] = sampled
        self.num_tokens[rows] = places + 1

    # -- rows and columns ---------------------------------------------------------------------------------------------

    def _place(self, row: int, block_ids: Sequence[int], num_computed_tokens: int) -> None:
        self.num_computed_tokens[row] = num_computed_tokens
        self._num_blocks[row] = 0
        self._append_blocks(row, block_ids)

    def _append_blocks(self, row: int, block_ids: Sequence[int]) -> None:
        start = int(self._num_blocks[row])
        end = start + len(block_ids)
        if end > self._block_ids.shape[1]:
            self._block_ids = widened(self._block_ids, end)
        self._block_ids[row, start:end] = block_ids
        self._num_blocks[row] = end

    def _fit_tokens(self, num_columns: int) -> None:
        if num_columns > self.token_ids.shape[1]:
            self.token_ids = widened(self.token_ids, num_columns)

    def _take_row(self) -> int:
        if not self._free_rows:
            num_rows = len(self._num_blocks)
            self._free_rows = list(range(2 * num_rows - 1, num_rows - 1, -1))
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, lengthened(array, 2 * num_rows))
        return self._free_rows.pop()


def lengthened(array: NDArray[Any], num_rows: int) -> NDArray[Any]:
    """A copy with room for `num_rows` rows, zero where new."""
    longer = np.zeros((num_rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def widened(array: NDArray[Any], num_columns: int) -> NDArray[Any]:
    """A copy with room for `num_columns` columns, or twice as many as before if that is more; zero where new."""
    wider = np.zeros((len(array), max(num_columns, 2 * array.shape[1])), array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
