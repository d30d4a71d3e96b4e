"""A recorded run, lived through again: the simulated engine is told what the recorded one was, when it was."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

import simpy

from schedulers import SchedulerContract, SchedulerOutput, StepResult
from schedulers.decisions import Arrival, StepDecisions
from sim.costs import CostModel
from sim.engine import SimEngine
from sim.tokens import TOKEN, TokenSource


class RecordedTokens(TokenSource):
    """Samples for each request what it sampled in the recorded run, in order, and then `TOKEN` for ever."""

    def __init__(self, steps: Sequence[StepDecisions]) -> None:
        """Take all tokens of a run."""
        super().__init__()
        self._tokens: defaultdict[str, deque[Sequence[int]]] = defaultdict(deque)
        for step in steps:
            for request_id, tokens in step.sampled_token_ids.items():
                self._tokens[request_id].append(tokens)

    def num_tokens(self, request_id: str) -> int:
        """Tokens that are left for a request."""
        return sum(map(len, self._tokens[request_id]))

    def sample(self, output: SchedulerOutput) -> StepResult:
        """The next tokens of every request in `output.sampled_ids`."""
        left = self._tokens
        return StepResult({name: left[name].popleft() if left[name] else (TOKEN,) for name in output.sampled_ids})


def replay(steps: Sequence[StepDecisions], scheduler: SchedulerContract, cost: CostModel) -> Iterator[StepDecisions]:
    """Run the simulated engine through the arrivals, aborts, tokens and times of a recorded run.

    What came before the n-th recorded step comes before the n-th step here, which starts at the same time: the
    scheduler is told the same in the same order, and if it is the same, it decides the same.

    Args:
        steps: of the whole run, at least one.
        scheduler: a fresh one of the same policy, parameters and limits.
        cost: the recorded step times (`sim.costs.Recorded`).

    Yields:
        Each step, as it was decided here.

    Raises:
        SchedulerError: the policy failed.
        RequestRefused: the scheduler does not take a request that the recorded one took.
    """
    env = simpy.Environment(initial_time=steps[0].start_s)
    tokens = RecordedTokens(steps)
    coming = iter(steps)

    def drain() -> float:
        step = next(coming, None)
        if step is None:
            return 0.0
        for news in step.news:
            if isinstance(news, Arrival):
                engine.submit(news.request(), max(tokens.num_tokens(news.request_id), 1))
            else:
                engine.abort(news)
        return max(step.start_s - env.now, 0.0)

    decided: deque[StepDecisions] = deque()
    engine = SimEngine(
        env, scheduler, cost, tokens, lambda _: None, lambda _: None, on_decisions=decided.append, drain=drain
    )
    while env.peek() < float("inf"):
        env.step()
        while decided:
            yield decided.popleft()
