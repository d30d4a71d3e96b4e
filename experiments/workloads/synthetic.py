"""Workloads that need no file: arrivals, lengths, classes and prefixes drawn from a seed."""

from __future__ import annotations

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

    def draw(self, arrivals_s: Sequence[float], drawn: Streams) -> list[WorkloadRequest]:
        """The requests, at these times."""
        which = self.draw_kinds(self.num_requests, drawn.classes)
        prompts, outputs = draw_lengths(self, self.prompt, self.output, which, drawn)
        prefixes = draw_prefixes(self.prefixes, self.num_requests, drawn)
        kinds = self.kinds
        columns = [column.tolist() for column in (prompts, outputs, which)]
        return [
            WorkloadRequest(
                request_id=f"r{number:05d}",
                arrival_s=arrival_s,
                num_prompt_tokens=num_prefix_tokens + num_prompt_tokens,
                num_output_tokens=num_output_tokens,
                max_tokens=self.max_tokens,
                priority=kinds[index][1].priority,
                client_id=kinds[index][1].client_id,
                slo=kinds[index][1].slo,
                class_name=kinds[index][0],
                hash_ids=hash_ids,
                trace_block_tokens=num_prefix_tokens,
            )
            for number, (arrival_s, num_prompt_tokens, num_output_tokens, index, (hash_ids, num_prefix_tokens)) in (
                enumerate(zip(arrivals_s, *columns, prefixes, strict=True))
            )
        ]

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

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The requests of `seed`, by arrival."""
        drawn = streams(seed)
        return self.draw(self.arrivals.times_s(self.num_requests, self.rate, drawn.arrivals).tolist(), drawn)

    def describe(self) -> str:
        """For example: 2,000 requests at 5.53/s, Poisson arrivals; prompts: 512 tokens; outputs: 128 tokens."""
        return f"{self.num_requests:,} requests at {self.rate:g}/s, {self.arrivals}; {self.describe_requests()}"


@dataclass(frozen=True, kw_only=True)
class AllAtOnce(Population):
    """`num_requests` requests that all arrive at the start: a batch job, whose makespan counts."""

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The requests of `seed`."""
        return self.draw([0.0] * self.num_requests, streams(seed))

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
        thinking_s = (drawn.thinking.standard_exponential(self.num_requests) * self.think_s).tolist()
        requests = self.draw([*thinking_s[:users], *[0.0] * (self.num_requests - users)], drawn)
        waiting = [
            replace(request, follows=requests[number - users].request_id, think_s=thinking_s[number])
            for number, request in enumerate(requests)
            if number >= users
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


def draw_prefixes(prefixes: SharedPrefixes | None, number: int, drawn: Streams) -> list[tuple[tuple[int, ...], int]]:
    """For each of `number` requests, or sessions: the hash ids of its shared prefix, one or none, and its length."""
    if prefixes is None:
        return [((), 0)] * number
    return [((prefix,), num_tokens) for prefix, num_tokens in prefixes.draw(number, drawn.prefixes)]


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
