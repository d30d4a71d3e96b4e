"""What policies share in which an urgent arrival takes the place of a less urgent running request."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from schedulers.batch import Batch
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.request import Request, Status
from schedulers.scheduler import Limits
from schedulers.victims import least_urgent


class Displacing(ChunkedPrefill):
    """Chunked prefill, most urgent first, whether started or not; who finds no room displaces the less urgent.

    Every decode is in every step. The budget that is left goes to prompts in the policy's `order`: an arrival can
    overtake a prompt that is half computed. Preemption is between steps, at the granularity of a token, and by
    recomputation; while slots and blocks are free, nobody is displaced.

    Args:
        limits: what the engine can hold.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who goes, of those that may be displaced.
        seed: for subclasses.
    """

    def __init__(
        self, limits: Limits, *, max_chunk: int | None = None, victim_rule: str = "least_urgent", seed: int = 0
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)

    def displaces(self, candidate: Request, request: Request) -> bool:
        """Whether a waiting `candidate` may take the place of `request`. Default: if it is strictly more urgent.

        Whoever displaces a request must also displace all that are less urgent than that. And two requests must not
        take turns at every token, since each turn costs a recomputation.
        """
        return bool(self.urgency(request) > self.urgency(candidate))

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        """Whom the victim rule names, of those that may go.

        A waiting request displaces the less urgent; a running one that cannot grow, those that would not displace it in
        turn, without end.
        """
        is_running = candidate.status is Status.RUNNING
        least = least_urgent(running, self.urgency)
        if not (is_running or self.displaces(candidate, least)):
            return None
        if self.victim_rule is least_urgent:
            return least
        if is_running:
            yielding = [request for request in running if not self.displaces(request, candidate)]
        else:
            yielding = [request for request in running if self.displaces(candidate, request)]
        return self.victim_rule(yielding, self.urgency)

    def compose(self, batch: Batch, now: float) -> None:
        """Decodes first, then prompts, begun or waiting, in one line by `order`.

        Nobody is admitted once a running request could not grow, since memory is short, nor behind one that finds no
        room. Whoever is the most urgent is served and never yields, so that work gets done however short memory is.
        """
        prompts = []
        for request in batch.running:
            if request.num_remaining_tokens == 1:
                batch.schedule(request)
            else:
                prompts.append(request)
        may_admit = not batch.preempted
        line = deque(sorted(prompts, key=lambda request: self.order(request, now)))
        for request in batch.waiting if may_admit else ():
            while line and self.order(line[0], now) <= self.order(request, now):
                may_admit = self._grow(line.popleft(), batch) and may_admit
            if not (may_admit and self.admit(request, batch) and batch.schedule(request, self.chunk(request, batch))):
                break
        for request in line:
            self._grow(request, batch)

    def _grow(self, request: Request, batch: Batch) -> bool:
        """Compute more of a prompt; False if somebody lost its place for it."""
        num_preempted = len(batch.preempted)
        batch.schedule(request, self.chunk(request, batch))
        return len(batch.preempted) == num_preempted
