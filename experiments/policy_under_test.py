"""A policy as a command line names it, for experiments that bring workloads, limits and step times of their own."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from experiments.composed import Composed
from experiments.config import read_point
from schedulers import InputError
from schedulers.conformance import Policy

_LIMITS = ("scheduler.token_budget", "scheduler.max_num_seqs")


def policy_under_test(composed: Composed, experiment: str) -> tuple[str, Policy]:
    """The policy's label, with the parameters that differ from its conf file, and what makes a scheduler of it.

    Raises:
        InputError: the command line gives something that has no part in the experiment.
    """
    if composed.config.mode.name == "real":
        raise InputError(
            f"experiment={experiment} has no mode=real: it asks what a policy decides at given step times, and so runs "
            "the simulator; the decisions of a real run are compared by experiment=replay"
        )
    for key in composed.varied:
        if key in _LIMITS or key.partition(".")[0] not in ("experiment", "scheduler", "question", "ask"):
            raise InputError(
                f"{key} has no part in experiment={experiment}, whose workloads, limits and step times are its own; "
                "leave it out"
            )
    point = read_point(composed)
    try:
        inspect.signature(point.policy).bind(point.limits, seed=0, **point.policy_params)
    except TypeError as error:
        given = ", ".join(point.policy_params) or "no parameters"
        raise InputError(f"scheduler: {point.policy.__name__} cannot be made with {given}: {error}") from error
    policy: Any = partial(point.policy, **point.policy_params) if point.policy_params else point.policy
    return point.label, policy
