"""Steps made by hand: for a worker's warm-up, for the memory that a step may need, and for profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from real.sampling_params import SamplingParams
from schedulers.step import BatchShape, NewRequest, SchedulerOutput


def made_step(
    step: int,
    pieces: Sequence[tuple[int, int]],
    block_size: int,
    params: SamplingParams,
    *,
    block_ids: Sequence[int] | None = None,
    finished_ids: Sequence[str] = (),
) -> SchedulerOutput:
    """A step of new requests, each of which computes the end of its prompt and samples.

    Args:
        step: its number, part of the requests' ids.
        pieces: (tokens to compute, context tokens) of each request; the context is taken for cached.
        block_size: tokens in a KV block.
        params: how all of them sample.
        block_ids: where their blocks are taken from, in this order; None: 0, 1, and so on.
        finished_ids: requests of an earlier step, to be forgotten.
    """
    needed = [math.ceil(sum(piece) / block_size) for piece in pieces]
    blocks = iter(range(sum(needed)) if block_ids is None else block_ids)
    new = [
        NewRequest(
            f"made-{step}-{index}", [0] * (tokens + context), params, [next(blocks) for _ in range(count)], context
        )
        for index, ((tokens, context), count) in enumerate(zip(pieces, needed, strict=True))
    ]
    scheduled = {request.request_id: tokens for request, (tokens, _) in zip(new, pieces, strict=True)}
    shape = BatchShape(
        prefills=[piece for piece in pieces if piece[0] > 1],
        decode_contexts=[context for tokens, context in pieces if tokens == 1],
        num_sampled=len(pieces),
    )
    return SchedulerOutput(step, scheduled, list(scheduled), new, [], {}, list(finished_ids), [], shape)
