"""Past-Future: admission by the peak of memory to come, as the past lets one expect it."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator

from schedulers import checks
from schedulers.batch import Batch
from schedulers.chance import draws
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.request import FinishReason, Request
from schedulers.scheduler import Limits

#: (tokens a request holds now, tokens it is yet to produce)
Future = tuple[int, int]


class PastFuture(ChunkedPrefill):
    """A request is admitted, in the order of arrival, while the peak of KV memory that lies ahead fits.

    Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025. In each step in which
    somebody could start, every request's output length is drawn anew from those of recently finished requests: of those
    that are longer than what it has produced already, or, if none is, its own limit. From the draws follows when each
    ends, and so the memory held at each of these instants; the largest must fit. With few requests running, chance
    weighs more: then, as in LightLLM, the authors' engine, all is drawn up to five times, and the largest peak counts.

    Args:
        limits: what the engine can hold.
        window: finished requests that are remembered.
        reserve: share of the KV cache that the peak must leave free, 0 to 1 (LightLLM: 0.05).
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow.
        seed: of the draws.
    """

    #: Requests that are enough to draw once, and most times to draw.
    ENOUGH, MOST_TIMES = 200, 5

    def __init__(
        self,
        limits: Limits,
        *,
        window: int = 1000,
        reserve: float = 0.05,
        max_chunk: int | None = None,
        victim_rule: str = "last_admitted",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        checks.count("window", window)
        checks.share("reserve", reserve)
        self.window = window
        self.num_usable_tokens = int((1 - reserve) * limits.num_blocks) * limits.block_size
        #: Output lengths of finished requests, as they ended, and sorted.
        self._history: deque[int] = deque()
        self._lengths: list[int] = []
        self._step_drawn = 0
        self._draws: Iterator[float] = iter(())
        #: What was drawn in this step for all that run, by tokens yet to produce, the fewest first.
        self._futures: list[list[Future]] = []

    def admit(self, request: Request, batch: Batch) -> bool:
        """Whether the peak with it fits, in every one of the draws. An empty engine admits regardless."""
        if not batch.has_room:
            return False
        if not self.running:
            return True
        if self._step_drawn != batch.step:
            self._draw(batch)
        for future in self._futures:
            insort(future, self._future(request), key=_left)
        return max(map(_peak, self._futures)) <= self.num_usable_tokens

    def ended(self, request: Request) -> None:
        """Remember its length, unless it was cut off."""
        if request.finish_reason is FinishReason.ABORT:
            return
        self._history.append(request.num_output_tokens)
        insort(self._lengths, request.num_output_tokens)
        if len(self._history) > self.window:
            del self._lengths[bisect_right(self._lengths, self._history.popleft()) - 1]

    def _draw(self, batch: Batch) -> None:
        """Draw the future of all that run."""
        self._step_drawn = batch.step
        self._draws = draws(self.seed, str(batch.step))
        times = min(self.MOST_TIMES, self.ENOUGH // len(self.running) + 1)
        self._futures = [sorted(map(self._future, self.running), key=_left) for _ in range(times)]

    def _future(self, request: Request) -> Future:
        """What `request` holds now, in whole blocks, and how many tokens it will produce, drawn."""
        produced, lengths = request.num_output_tokens, self._lengths
        length = request.token_limit - request.num_prompt_tokens
        first = bisect_right(lengths, produced)
        if first < len(lengths):
            length = min(length, lengths[first + int(next(self._draws) * (len(lengths) - first))])
        block_size = self.limits.block_size
        return -(-request.num_tokens // block_size) * block_size, length - produced


def _left(future: Future) -> int:
    return future[1]


def _peak(futures: list[Future]) -> int:
    """Most tokens held at the end of any request, given futures by tokens left, fewest first.

    When a request ends, all that have as many tokens left or more are still there, and each has grown by those.
    """
    peak = held = 0
    for num_alive, (now, left) in enumerate(reversed(futures), start=1):
        held += now
        peak = max(peak, held + left * num_alive)
    return peak
