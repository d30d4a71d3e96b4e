"""Who asks: classes of requests that differ in urgency, client and targets, and what all of them have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from experiments.workloads import checks
from experiments.workloads.lengths import Lengths
from experiments.workloads.limits import TOO_LONG
from schedulers.errors import InputError
from schedulers.request import SLO

LENGTHS = "{_target_: experiments.workloads.Fixed, num_tokens: 512}"


@dataclass(frozen=True)
class RequestClass:
    """A kind of request, and the share of all requests that are of it."""

    share: float = 0.0
    #: Lower is more urgent.
    priority: int = 0
    client_id: str = ""
    slo: SLO | None = None
    #: Lengths of this class, where they are drawn; None: those of the workload.
    prompt: Lengths | None = None
    output: Lengths | None = None


@dataclass(frozen=True, kw_only=True)
class Clients:
    """What every workload says of its clients."""

    #: Classes by name; their shares add up to 1. Without any, all requests are alike.
    classes: Mapping[str, RequestClass] = field(default_factory=dict)
    #: What every client gives as its limit; None: no limit.
    max_tokens: int | None = None
    #: What to do with a request longer than the model allows: "error" or "drop".
    too_long: str = "error"

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            checks.count("workload.max_tokens", self.max_tokens)
        checks.one_of("workload.too_long", self.too_long, TOO_LONG)
        if not isinstance(self.classes, Mapping):
            raise InputError(f"workload.classes={self.classes}: it must hold classes by name; {{}} for none")
        for name, kind in self.classes.items():
            self._check_class(f"workload.classes.{name}", kind)
        self._check_shares()

    def _check_class(self, key: str, kind: object) -> None:
        if not isinstance(kind, RequestClass):
            raise InputError(f"{key}={kind}: it must be a node with _target_: experiments.workloads.RequestClass")
        if not isinstance(kind.priority, int) or isinstance(kind.priority, bool):
            raise InputError(f"{key}.priority={kind.priority}: it must be a whole number")
        checks.not_negative(f"{key}.share", kind.share)
        for name, lengths in (("prompt", kind.prompt), ("output", kind.output)):
            if lengths is not None:
                checks.made(f"{key}.{name}", lengths, "tokens", LENGTHS)

    def _check_shares(self) -> None:
        total = math.fsum(kind.share for kind in self.classes.values())
        if self.classes and not math.isclose(total, 1, abs_tol=1e-6):
            shares = ", ".join(f"{name} {kind.share:g}" for name, kind in self.classes.items())
            raise InputError(f"workload.classes: the shares must add up to 1, not {total:g} ({shares})")

    @property
    def kinds(self) -> list[tuple[str, RequestClass]]:
        """The classes with their names; one without a name where there are none."""
        return list(self.classes.items()) or [("", RequestClass(share=1))]

    def draw_kinds(self, number: int, generator: Generator) -> NDArray[np.int64]:
        """Which of `kinds` each of `number` requests is of, by their shares."""
        # The last class takes what rounding leaves of 1.
        upper_ends = np.cumsum([kind.share for _, kind in self.kinds])[:-1]
        return np.searchsorted(upper_ends, generator.random(number), side="right")

    def describe_classes(self) -> str:
        """For example: "; classes: urgent 25%, ordinary 75%"; nothing where there are none."""
        shares = ", ".join(f"{name} {kind.share:.0%}" for name, kind in self.classes.items())
        return f"; classes: {shares}" if shares else ""
