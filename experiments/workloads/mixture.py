"""Several workloads as one: each request, or session, comes from one of them, by weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import SeedSequence

from experiments.workloads import checks
from experiments.workloads.arrivals import Arrivals, Poisson
from experiments.workloads.limits import TOO_LONG
from experiments.workloads.request import Workload, WorkloadRequest
from experiments.workloads.seeds import streams
from experiments.workloads.synthetic import check_arrivals
from schedulers.errors import InputError
from schedulers.request import SLO


@dataclass(frozen=True)
class Part:
    """One workload of a mixture. What is given here takes the place of what its requests say of themselves."""

    workload: Workload
    #: In proportion to which this part is chosen.
    weight: float = 1.0
    priority: int | None = None
    client_id: str | None = None
    slo: SLO | None = None


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """`num_requests` arrivals at `rate` a second, each the next request of a part that is drawn by weight.

    Of the parts, the order of their requests counts, and not when they would arrive. Those that follow others come with
    them, so that an arrival may be a whole session. Parts share no prefixes, and each has a seed of its own.
    """

    parts: Mapping[str, Part]
    rate: float
    num_requests: int
    arrivals: Arrivals = field(default_factory=Poisson)
    #: What to do with a request longer than the model allows: "error" or "drop".
    too_long: str = "error"

    def __post_init__(self) -> None:
        checks.rate("workload.rate", self.rate)
        checks.count("workload.num_requests", self.num_requests)
        check_arrivals(self.arrivals)
        checks.one_of("workload.too_long", self.too_long, TOO_LONG)
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise InputError(f"workload.parts={self.parts}: it must hold at least one part by name")
        for name, part in self.parts.items():
            key = f"workload.parts.{name}"
            if not isinstance(part, Part):
                raise InputError(f"{key}={part}: it must be a node with _target_: experiments.workloads.Part")
            checks.made(f"{key}.workload", part.workload, "requests", "that of a file in conf/workload")
            checks.not_negative(f"{key}.weight", part.weight)
        if not math.fsum(part.weight for part in self.parts.values()):
            raise InputError("workload.parts: every weight is 0; one of them must be above")

    def requests(self, seed: int) -> list[WorkloadRequest]:
        """The requests of `seed`: the arrivals, and, after them, those that follow."""
        drawn = streams(seed)
        arrivals_s = self.arrivals.times_s(self.num_requests, self.rate, drawn.arrivals)
        upper_ends = np.cumsum([part.weight for part in self.parts.values()])
        chosen = np.searchsorted(upper_ends, drawn.classes.random(self.num_requests) * upper_ends[-1], side="right")
        requests: list[WorkloadRequest] = []
        for index, name in enumerate(self.parts):
            requests += self._take(name, index, arrivals_s[chosen == index].tolist(), seed)
        opening = sorted((each for each in requests if not each.follows), key=lambda request: request.arrival_s)
        return opening + [request for request in requests if request.follows]

    def _take(self, name: str, index: int, arrivals_s: list[float], seed: int) -> Iterator[WorkloadRequest]:
        """The first requests of a part, at these times, and those that follow them, renamed."""
        part = self.parts[name]
        own_seed = int(SeedSequence([seed, index]).generate_state(1, np.uint64)[0])
        taken: set[str] = set()
        coming = iter(arrivals_s)
        for request in part.workload.requests(own_seed):
            arrival_s = 0.0 if request.follows in taken else None if request.follows else next(coming, None)
            if arrival_s is None:
                continue
            taken.add(request.request_id)
            yield replace(
                request,
                request_id=f"{name}.{request.request_id}",
                arrival_s=arrival_s,
                follows=request.follows and f"{name}.{request.follows}",
                session_id=request.session_id and f"{name}.{request.session_id}",
                content_id=request.content_id and f"{name}.{request.content_id}",
                hash_ids=tuple(hash_id * len(self.parts) + index for hash_id in request.hash_ids),
                priority=request.priority if part.priority is None else part.priority,
                client_id=request.client_id if part.client_id is None else part.client_id,
                slo=part.slo or request.slo,
                class_name=f"{name}.{request.class_name}".rstrip("."),
            )
        if num_left := len(list(coming)):
            raise InputError(
                f"workload.parts.{name}: {len(arrivals_s):,} of the {self.num_requests:,} arrivals are its own, and it "
                f"has {len(arrivals_s) - num_left:,}; ask for fewer, or give it more"
            )

    def describe(self) -> str:
        """For example: 1,000 arrivals at 4/s, Poisson arrivals; chat 75%: ...; batch 25%: ..."""
        total = math.fsum(part.weight for part in self.parts.values())
        parts = "; ".join(
            f"{name} {part.weight / total:.0%}: {part.workload.describe()}" for name, part in self.parts.items()
        )
        return f"{self.num_requests:,} arrivals at {self.rate:g}/s, {self.arrivals}; {parts}"
