"""Workloads that need no file: arrivals, lengths and classes drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from experiments.workloads import checks
from experiments.workloads.arrivals import Arrivals, Poisson
from experiments.workloads.lengths import Lengths
from experiments.workloads.limits import TOO_LONG
from experiments.workloads.request import WorkloadRequest
from experiments.workloads.seeds import streams
from schedulers.errors import InputError
from schedulers.request import SLO

_LENGTHS = "{_target_: experiments.workloads.Fixed, num_tokens: 512}"


@dataclass(frozen=True)
class RequestClass:
    """A kind of request, and the share of all requests that are of it."""

    share: float
    #: Lower is more urgent.
    priority: int = 0
    client_id: str = ""
    slo: SLO | None = None
    #: Lengths of this class; None: those of the workload.
    prompt: Lengths | None = None
    output: Lengths | None = None


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """`num_requests` requests at `rate` a second.

    The seed decides all that is drawn: gaps, lengths and classes, each from a stream of its own. Thus another rate
    scales the same arrivals and leaves all else; other lengths or classes leave the arrivals; and a larger
    `num_requests` adds requests after the same first ones.
    """

    rate: float
    num_requests: int
    prompt: Lengths
    output: Lengths
    arrivals: Arrivals = field(default_factory=Poisson)
    #: Classes by name; their shares add up to 1. Without any, all requests are alike.
    classes: Mapping[str, RequestClass] = field(default_factory=dict)
    #: What every client gives as its limit; None: no limit.
    max_tokens: int | None = None
    #: What to do with a request longer than the model allows: "error" or "drop".
    too_long: str = "error"

    def __post_init__(self) -> None:
        checks.rate("workload.rate", self.rate)
        checks.count("workload.num_requests", self.num_requests)
        if self.max_tokens is not None:
            checks.count("workload.max_tokens", self.max_tokens)
        checks.one_of("workload.too_long", self.too_long, TOO_LONG)
        checks.made("workload.prompt", self.prompt, "tokens", _LENGTHS)
        checks.made("workload.output", self.output, "tokens", _LENGTHS)
        checks.made("workload.arrivals", self.arrivals, "gaps", "{_target_: experiments.workloads.Poisson}")
        if not isinstance(self.classes, Mapping):
            raise InputError(f"workload.classes={self.classes}: it must hold classes by name; {{}} for none")
        for name, kind in self.classes.items():
            self._check_class(f"workload.classes.{name}", kind)
        total = math.fsum(kind.share for kind in self.classes.values())
        if self.classes and not math.isclose(total, 1, abs_tol=1e-6):
            shares = ", ".join(f"{name} {kind.share:g}" for name, kind in self.classes.items())
            raise InputError(f"workload.classes: the shares must add up to 1, not {total:g} ({shares})")

    def _check_class(self, key: str, kind: object) -> None:
        if not isinstance(kind, RequestClass):
            raise InputError(f"{key}={kind}: it must be a node with _target_: experiments.workloads.RequestClass")
        if not isinstance(kind.priority, int) or isinstance(kind.priority, bool):
            raise InputError(f"{key}.priority={kind.priority}: it must be a whole number")
        checks.not_negative(f"{key}.share", kind.share)
        for name, lengths in (("prompt", kind.prompt), ("output", kind.output)):
            if lengths is not None:
                checks.made(f"{key}.{name}", lengths, "tokens", _LENGTHS)

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The requests of `seed`, by arrival."""
        drawn = streams(seed)
        arrivals_s = np.cumsum(self.arrivals.gaps(self.num_requests, drawn.arrivals)) / self.rate
        prompt_quantiles = drawn.prompts.random(self.num_requests)
        output_quantiles = drawn.outputs.random(self.num_requests)

        names, kinds = zip(*(self.classes or {"": RequestClass(share=1)}).items(), strict=True)
        # The last class takes what rounding leaves of 1.
        upper_ends = np.cumsum([kind.share for kind in kinds])[:-1]
        which = np.searchsorted(upper_ends, drawn.classes.random(self.num_requests), side="right")
        prompts = np.empty(self.num_requests, dtype=np.int64)
        outputs = np.empty(self.num_requests, dtype=np.int64)
        for index, kind in enumerate(kinds):
            mine = which == index
            prompts[mine] = (kind.prompt or self.prompt).tokens(prompt_quantiles[mine])
            outputs[mine] = (kind.output or self.output).tokens(output_quantiles[mine])

        columns = [column.tolist() for column in (arrivals_s, prompts, outputs, which)]
        return [
            WorkloadRequest(
                request_id=f"r{number:05d}",
                arrival_s=arrival_s,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=num_output_tokens,
                max_tokens=self.max_tokens,
                priority=kinds[index].priority,
                client_id=kinds[index].client_id,
                slo=kinds[index].slo,
                class_name=names[index],
            )
            for number, (arrival_s, num_prompt_tokens, num_output_tokens, index) in enumerate(
                zip(*columns, strict=True)
            )
        ]

    def describe(self) -> str:
        """For example: 2,000 requests at 5.53/s, Poisson arrivals; prompts: 512 tokens; outputs: 128 tokens."""
        line = (
            f"{self.num_requests:,} requests at {self.rate:g}/s, {self.arrivals}; prompts: {self.prompt}; "
            f"outputs: {self.output}"
        )
        shares = ", ".join(f"{name} {kind.share:.0%}" for name, kind in self.classes.items())
        return f"{line}; classes: {shares}" if shares else line
