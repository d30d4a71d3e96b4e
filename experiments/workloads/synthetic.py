"""Workloads that need no file: arrivals, lengths, classes and prefixes drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from experiments.workloads import checks
from experiments.workloads.arrivals import Arrivals, Poisson
from experiments.workloads.clients import LENGTHS, Clients
from experiments.workloads.drawn import Drawn
from experiments.workloads.lengths import Lengths
from experiments.workloads.prefixes import SharedPrefixes
from experiments.workloads.request import WorkloadRequest
from experiments.workloads.seeds import Streams, streams
from schedulers.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Population(Clients):
    """Requests whose lengths, classes and prefixes are drawn, whenever they arrive.

    The seed decides all that is drawn, each thing from a stream of its own: other lengths or classes leave the
    arrivals, and a larger `num_requests` adds requests after the same first ones.
    """

    num_requests: int
    #: Of the prompt that is the request's own, without the shared prefix.
    prompt: Lengths
    output: Lengths
    prefixes: SharedPrefixes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("workload.num_requests", self.num_requests)
        checks.made("workload.prompt", self.prompt, "tokens", LENGTHS)
        checks.made("workload.output", self.output, "tokens", LENGTHS)
        check_prefixes(self.prefixes)

    def draw(self, arrivals_s: NDArray[np.float64], drawn: Streams) -> Sequence[WorkloadRequest]:
        """The requests, at these times, each made when it is asked for."""
        kinds = self.kinds
        which = self.draw_kinds(self.num_requests, drawn.classes)
        prompts, outputs = draw_lengths(self, self.prompt, self.output, which, drawn)
        prefixes, prefix_lengths = draw_prefixes(self.prefixes, self.num_requests, drawn)

        def make(
            number: int,
            arrival_s: float,
            num_prompt_tokens: int,
            num_output_tokens: int,
            index: int,
            prefix: int,
            num_prefix_tokens: int,
        ) -> WorkloadRequest:
            name, kind = kinds[index]
            return WorkloadRequest(
                request_id=f"r{number:05d}",
                arrival_s=arrival_s,
                num_prompt_tokens=num_prefix_tokens + num_prompt_tokens,
                num_output_tokens=num_output_tokens,
                max_tokens=self.max_tokens,
                priority=kind.priority,
                client_id=kind.client_id,
                slo=kind.slo,
                class_name=name,
                hash_ids=(prefix,) if num_prefix_tokens else (),
                trace_block_tokens=num_prefix_tokens,
            )

        return Drawn((arrivals_s, prompts, outputs, which, prefixes, prefix_lengths), make)

    def describe_requests(self) -> str:
        """For example: prompts: 512 tokens; outputs: 128 tokens."""
        prefixes = "" if self.prefixes is None else f"{self.prefixes}; "
        return f"{prefixes}prompts: {self.prompt}; outputs: {self.output}{self.describe_classes()}"


@dataclass(frozen=True, kw_only=True)
class Synthetic(Population):
    """`num_requests` requests at `rate` a second, which wait for nobody (an open loop)."""

    rate: float
    arrivals: Arrivals = field(default_factory=Poisson)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.rate("workload.rate", self.rate)
        check_arrivals(self.arrivals)

    def requests(self, seed: int) -> Sequence[WorkloadRequest]:
        """The requests of `seed`, by arrival."""
        drawn = streams(seed)
        return self.draw(self.arrivals.times_s(self.num_requests, self.rate, drawn.arrivals), drawn)

    def describe(self) -> str:
        """For example: 2,000 requests at 5.53/s, Poisson arrivals; prompts: 512 tokens; outputs: 128 tokens."""
        return f"{self.num_requests:,} requests at {self.rate:g}/s, {self.arrivals}; {self.describe_requests()}"


@dataclass(frozen=True, kw_only=True)
class AllAtOnce(Population):
    """`num_requests` requests that all arrive at the start: a batch job, whose makespan counts."""

    def requests(self, seed: int) -> Sequence[WorkloadRequest]:
        """The requests of `seed`."""
        return self.draw(np.zeros(self.num_requests), streams(seed))

    def describe(self) -> str:
        """For example: 2,000 requests at once; prompts: 512 tokens; outputs: 128 tokens."""
        return f"{self.num_requests:,} requests at once; {self.describe_requests()}"


@dataclass(frozen=True, kw_only=True)
class ClosedLoop(Population):
    """`num_users` users, each of whom waits for an answer, thinks, and asks again: never more in flight than users.

    Requests are dealt to the users in turn, so that what each asks does not depend on who answers how fast. Think times
    are exponential with mean `think_s` seconds; 0: none. Users think before their first request too, so that they do
    not start in step.
    """

    num_users: int
    think_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("workload.num_users", self.num_users)
        checks.not_negative("workload.think_s", self.think_s)

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The requests of `seed`: the first of each user, by arrival, and then those that follow."""
        drawn, users = streams(seed), self.num_users
        thinking_s = drawn.thinking.standard_exponential(self.num_requests) * self.think_s
        requests = list(self.draw(np.where(np.arange(self.num_requests) < users, thinking_s, 0.0), drawn))
        waiting = [
            replace(request, follows=before.request_id, think_s=think_s)
            for before, request, think_s in zip(requests, requests[users:], thinking_s[users:].tolist(), strict=False)
        ]
        return sorted(requests[:users], key=lambda request: request.arrival_s) + waiting

    def describe(self) -> str:
        """For example: 2,000 requests of 16 users, who think 1 s on average; prompts: 512 tokens; ..."""
        think = f"who think {self.think_s:g} s on average" if self.think_s else "who never think"
        return f"{self.num_requests:,} requests of {self.num_users:,} users, {think}; {self.describe_requests()}"


def draw_lengths(
    clients: Clients, prompt: Lengths, output: Lengths, which: NDArray[np.int64], drawn: Streams
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompt and output lengths of requests of the classes `which`; same shape.

    Args:
        prompt, output: of classes that have none of their own.
    """
    prompt_quantiles = drawn.prompts.random(len(which))
    output_quantiles = drawn.outputs.random(len(which))
    prompts, outputs = np.empty_like(which), np.empty_like(which)
    for index, (_, kind) in enumerate(clients.kinds):
        mine = which == index
        prompts[mine] = (kind.prompt or prompt).tokens(prompt_quantiles[mine])
        outputs[mine] = (kind.output or output).tokens(output_quantiles[mine])
    return prompts, outputs


def draw_prefixes(
    prefixes: SharedPrefixes | None, number: int, drawn: Streams
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The shared prefix of each of `number` requests, or sessions, and its length, 0 for none; shape (number,) each."""
    if prefixes is None:
        return np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    return prefixes.draw(number, drawn.prefixes)


def check_arrivals(arrivals: object) -> None:
    """Refuse what is no process of arrivals.

    Raises:
        InputError: saying what would be right.
    """
    checks.made("workload.arrivals", arrivals, "times_s", "{_target_: experiments.workloads.Poisson}")


def check_prefixes(prefixes: object) -> None:
    """Refuse what is neither None nor shared prefixes.

    Raises:
        InputError: saying what would be right.
    """
    if prefixes is not None and not isinstance(prefixes, SharedPrefixes):
        raise InputError(
            f"workload.prefixes={prefixes}: it must be null, or a node with "
            "_target_: experiments.workloads.SharedPrefixes"
        )
