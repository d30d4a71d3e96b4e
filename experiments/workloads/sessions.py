"""Conversations of several turns, each of which repeats all that was said before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from experiments.workloads import checks
from experiments.workloads.arrivals import Arrivals, Poisson
from experiments.workloads.clients import LENGTHS, Clients
from experiments.workloads.lengths import Lengths
from experiments.workloads.prefixes import SharedPrefixes
from experiments.workloads.request import WorkloadRequest
from experiments.workloads.seeds import Streams, streams
from experiments.workloads.synthetic import check_arrivals, check_prefixes, draw_lengths, draw_prefixes

#: The turns of one session: how many tokens its user adds, and how many are answered.
Turns = Sequence[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Conversations(Clients, ABC):
    """Sessions that start at `rate` a second; who takes part, and what is said, is up to each kind.

    The prompt of a turn is the shared prefix, if there is one, then every earlier turn with its answer, then what the
    user adds. It is sent a think time after the last answer has ended; think times are exponential with mean `think_s`.
    A session is of one class.
    """

    rate: float
    arrivals: Arrivals = field(default_factory=Poisson)
    think_s: float = 0.0
    prefixes: SharedPrefixes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.rate("workload.rate", self.rate)
        check_arrivals(self.arrivals)
        checks.not_negative("workload.think_s", self.think_s)
        check_prefixes(self.prefixes)

    @abstractmethod
    def converse(self, drawn: Streams) -> tuple[list[Turns], NDArray[np.int64]]:
        """Every session's turns, at least one each, and which of `kinds` it is of."""

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The first turns of all sessions, by arrival, and then those that follow, session by session."""
        drawn = streams(seed)
        sessions, which = self.converse(drawn)
        arrivals_s = self.arrivals.times_s(len(sessions), self.rate, drawn.arrivals).tolist()
        prefixes, prefix_lengths = draw_prefixes(self.prefixes, len(sessions), drawn)
        thinking_s = (drawn.thinking.standard_exponential(sum(map(len, sessions))) * self.think_s).tolist()
        first: list[WorkloadRequest] = []
        later: list[WorkloadRequest] = []
        for number, turns in enumerate(sessions):
            name, kind = self.kinds[which[number]]
            num_prefix_tokens = int(prefix_lengths[number])
            session_id = f"s{number:05d}"
            opening = WorkloadRequest(
                request_id=f"{session_id}.0",
                arrival_s=arrivals_s[number],
                num_prompt_tokens=num_prefix_tokens,
                num_output_tokens=0,
                max_tokens=self.max_tokens,
                priority=kind.priority,
                client_id=kind.client_id,
                session_id=session_id,
                slo=kind.slo,
                class_name=name,
                hash_ids=(int(prefixes[number]),) if num_prefix_tokens else (),
                trace_block_tokens=num_prefix_tokens,
                content_id=session_id,
            )
            start = len(first) + len(later)
            turn, *following = repeated(opening, turns, thinking_s[start : start + len(turns)])
            first.append(turn)
            later += following
        return first + later


def repeated(opening: WorkloadRequest, turns: Turns, thinking_s: Sequence[float]) -> list[WorkloadRequest]:
    """The turns of a session, each with all earlier ones in its prompt, as far as its client lets an answer grow.

    Args:
        opening: what all have in common; its prompt comes before the first turn's.
        thinking_s: before each turn, of which the first is not used.
    """
    requests: list[WorkloadRequest] = []
    num_tokens = opening.num_prompt_tokens
    for number, (num_new_tokens, num_output_tokens) in enumerate(turns):
        num_tokens += num_new_tokens
        turn = replace(
            opening,
            request_id=f"{opening.session_id}.{number}",
            num_prompt_tokens=num_tokens,
            num_output_tokens=num_output_tokens,
        )
        if requests:
            turn = replace(turn, arrival_s=0.0, follows=requests[-1].request_id, think_s=thinking_s[number])
        requests.append(turn)
        num_tokens += turn.num_answer_tokens
    return requests


@dataclass(frozen=True, kw_only=True)
class Sessions(Conversations):
    """`num_sessions` sessions of which everything is drawn: how many turns, and how long each."""

    num_sessions: int
    turns: Lengths
    #: What the user adds in a turn, without the history.
    prompt: Lengths
    output: Lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("workload.num_sessions", self.num_sessions)
        for name in ("turns", "prompt", "output"):
            checks.made(f"workload.{name}", getattr(self, name), "tokens", LENGTHS)

    def converse(self, drawn: Streams) -> tuple[list[Turns], NDArray[np.int64]]:
        """Draw them."""
        which = self.draw_kinds(self.num_sessions, drawn.classes)
        counts = self.turns.tokens(drawn.turns.random(self.num_sessions))
        prompts, outputs = draw_lengths(self, self.prompt, self.output, np.repeat(which, counts), drawn)
        lengths = list(zip(prompts.tolist(), outputs.tolist(), strict=True))
        ends = np.cumsum(counts).tolist()
        return [lengths[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)], which

    def describe(self) -> str:
        """For example: 500 sessions at 2/s, Poisson arrivals; turns: 4 turns; think 10 s; a turn's own prompt: ..."""
        prefixes = "" if self.prefixes is None else f"{self.prefixes}; "
        turns = str(self.turns).replace("tokens", "turns")
        return (
            f"{self.num_sessions:,} sessions at {self.rate:g}/s, {self.arrivals}; turns: {turns}; think "
            f"{self.think_s:g} s; {prefixes}a turn's own prompt: {self.prompt}; outputs: {self.output}"
            f"{self.describe_classes()}"
        )
