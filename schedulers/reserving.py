"""Admission by reservation: memory is promised to outputs before they are produced."""

from __future__ import annotations

import math

from schedulers import checks
from schedulers.batch import Batch
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.request import Request
from schedulers.scheduler import Limits


class Reserving(ChunkedPrefill):
    """Requests are admitted, as they come, while what all of them reserve fits in a share of the KV cache.

    The admissions that Past-Future is compared with (Gong et al., "Past-Future Scheduler for LLM Serving under SLA
    Guarantees", ASPLOS 2025):

        conservative    output_share 1, memory_share 1     prompt and longest output: nobody is ever evicted
        overcommitted   output_share 1, memory_share > 1   the same, as if there were more memory than there is
        ratio           output_share between, such as 0.5  a part of the longest output
        aggressive      output_share 0, memory_share < 1   what is there now, up to a watermark

    The longest output is the request's `max_tokens`, or what the model and the cache leave. Shared prefixes are counted
    for each who shares them. An empty engine admits regardless.

    Args:
        limits: what the engine can hold.
        output_share: how much of its longest output a request reserves, 0 to 1.
        memory_share: how much of the KV blocks may be reserved; more than 1 promises more than there is.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        output_share: float = 1.0,
        memory_share: float = 1.0,
        max_chunk: int | None = None,
        victim_rule: str = "last_admitted",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        checks.share("output_share", output_share)
        checks.positive("memory_share", memory_share)
        self.output_share = output_share
        self.num_reservable_blocks = int(memory_share * limits.num_blocks)

    def reserved_tokens(self, request: Request) -> int:
        """What a request has, or its share of the output it may have, whichever is more."""
        most_output = request.token_limit - request.num_prompt_tokens
        return max(request.num_tokens, request.num_prompt_tokens + math.ceil(self.output_share * most_output))

    def admit(self, request: Request, batch: Batch) -> bool:
        """Whether its reservation fits beside those of all that run."""
        if not self.running:
            return True
        reserved = sum(batch.num_blocks(self.reserved_tokens(other)) for other in (*self.running, request))
        return reserved <= self.num_reservable_blocks
