"""Chunked prefill: decodes first, then prompts in chunks within the token budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schedulers.batch import Batch
from schedulers.errors import InputError
from schedulers.request import Request, Status
from schedulers.scheduler import Limits, Scheduler
from schedulers.victims import find_rule


class ChunkedPrefill(Scheduler):
    """Stall-free batching: every decode is in every step; what the budget has left goes to prompts as they came.

    Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024; the default
    policy of vLLM V1. The whole composition is `Scheduler.compose`.

    Args:
        limits: what the engine can hold.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow; one of `schedulers.victims.RULES`.
        seed: not used.
    """

    def __init__(
        self, limits: Limits, *, max_chunk: int | None = None, victim_rule: str = "last_admitted", seed: int = 0
    ) -> None:
        super().__init__(limits, seed=seed)
        given: Any = max_chunk  # a config may say anything
        if given is not None and (not isinstance(given, int) or given < 1):
            raise InputError(f"max_chunk={max_chunk!r}: it must be a whole number of at least 1, or null for no limit")
        self.max_chunk = max_chunk
        self.victim_rule = find_rule(victim_rule)

    def urgency(self, request: Request) -> Any:
        """What the rule `least_urgent` compares; larger is less urgent. Default: `order`, if that needs no time."""
        return self.order(request, 0.0)

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        """Whom the victim rule names, for a running request; nobody for a waiting one."""
        return self.victim_rule(running, self.urgency) if candidate.status is Status.RUNNING else None

    def chunk(self, request: Request, batch: Batch) -> int:
        """The budget that is left, up to `max_chunk`."""
        return batch.budget_left if self.max_chunk is None else min(self.max_chunk, batch.budget_left)
