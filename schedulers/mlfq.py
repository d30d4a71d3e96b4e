"""MLFQ: short outputs first without knowing them, by letting requests sink as they go on."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from schedulers import checks
from schedulers.batch import Batch
from schedulers.displacing import Displacing
from schedulers.request import Request, Status
from schedulers.scheduler import Limits


class MLFQ(Displacing):
    """Skip-join multi-level feedback queue: a request sinks a level with each quantum it has used up.

    Wu et al., "Fast Distributed Inference Serving for Large Language Models" (FastServe), 2023, arXiv:2305.05920. The
    quantum of a level is twice that of the level above. A new request skips the levels whose quantum its prompt alone
    would use up. A request of a higher level displaces one of a lower; within a level, the earlier arrival goes first.
    A request that has waited `promote_after_s` starts over at the top, so that nobody starves.

    Service is counted in output tokens here, since a policy has no clock for iterations: a prompt counts as one token
    for each `prompt_tokens_per_token` of its own. FastServe keeps the KV cache of whoever is displaced in host memory;
    here it is computed again, unless the prefix cache still has it.

    Args:
        limits: what the engine can hold.
        num_levels: levels, at least 1.
        quantum_tokens: output tokens before a request leaves the top level.
        prompt_tokens_per_token: prompt tokens that cost as much as an output token.
        promote_after_s: seconds of waiting, in one go, that bring a request to the top; None: never.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who goes, of those of lower levels.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        num_levels: int = 6,
        quantum_tokens: int = 16,
        prompt_tokens_per_token: float = 128.0,
        promote_after_s: float | None = 10.0,
        max_chunk: int | None = None,
        victim_rule: str = "least_urgent",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        checks.count("num_levels", num_levels)
        checks.count("quantum_tokens", quantum_tokens)
        checks.positive("prompt_tokens_per_token", prompt_tokens_per_token)
        if promote_after_s is not None:
            checks.positive("promote_after_s", promote_after_s)
        self.prompt_tokens_per_token = prompt_tokens_per_token
        self.promote_after_s = promote_after_s
        self._quanta = [quantum_tokens * 2**level for level in range(num_levels - 1)]  # the last level has no end
        #: Service at which each level but the last ends, for a request that started at the top.
        self._ends = list(accumulate(self._quanta))
        #: By request, what to add to its output tokens to get its service as if it had started at the top.
        self._head_starts: dict[str, float] = {}
        #: Since when a request has been waiting, seconds, the longest first; some may run by now.
        self._waiting_since: dict[str, float] = {}

    def level(self, request: Request) -> int:
        """0 is the top."""
        head_start = self._head_starts.get(request.request_id)
        if head_start is None:
            head_start = self._head_starts[request.request_id] = self._skip(request)
        return bisect_right(self._ends, head_start + request.num_output_tokens)

    def order(self, request: Request, now: float) -> tuple[int, float]:
        """Level, then arrival."""
        return self.level(request), request.arrival_time

    def displaces(self, candidate: Request, request: Request) -> bool:
        """Only a request of a higher level does."""
        return self.level(request) > self.level(candidate)

    def compose(self, batch: Batch, now: float) -> None:
        """Promote who has waited too long; then decodes, then prompts by level."""
        if self.promote_after_s is not None:
            self._promote(now - self.promote_after_s, now)
        super().compose(batch, now)

    def add_request(self, request: Request) -> None:
        """Enqueue an arrival at the level where its prompt belongs."""
        super().add_request(request)
        self._waiting_since[request.request_id] = request.arrival_time

    def enqueue(self, request: Request, now: float) -> None:
        """Put a displaced request back at its level."""
        super().enqueue(request, now)
        self._waiting_since.pop(request.request_id, None)
        self._waiting_since[request.request_id] = now

    def ended(self, request: Request) -> None:
        """Forget it."""
        self._head_starts.pop(request.request_id, None)
        self._waiting_since.pop(request.request_id, None)

    def _skip(self, request: Request) -> float:
        """The service that a new request has behind it: its prompt's, at the first level whose quantum leaves more."""
        service = request.num_prompt_tokens / self.prompt_tokens_per_token
        level = bisect_right(self._quanta, service)
        return service + (self._ends[level - 1] if level else 0)

    def _promote(self, since: float, now: float) -> None:
        """Bring those to the top that have been waiting since then, or longer."""
        while self._waiting_since:
            request_id, start = next(iter(self._waiting_since.items()))
            if start > since:
                return
            del self._waiting_since[request_id]
            request = self.live[request_id]
            if request.status is not Status.RUNNING and self.level(request):
                self.waiting.remove(request)
                self._head_starts[request_id] = -request.num_output_tokens
                super().enqueue(request, now)
