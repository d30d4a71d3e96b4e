"""Victim rules: who of the running requests loses its place when memory or slots are short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from schedulers.errors import InputError
from schedulers.request import Request

#: A policy's measure of a request; larger is less urgent.
Urgency = Callable[[Request], Any]
#: Who of these, in the order they were admitted, goes first.
VictimRule = Callable[[Sequence[Request], Urgency], Request]


def last_admitted(running: Sequence[Request], _: Urgency) -> Request:
    """The request admitted last, as vLLM's FCFS has it: the work of those before it is kept."""
    return running[-1]


def fewest_computed_tokens(running: Sequence[Request], _: Urgency) -> Request:
    """The request of which the least must be computed again; the later admitted among equals."""
    return min(reversed(running), key=lambda request: request.num_computed_tokens)


def least_urgent(running: Sequence[Request], urgency: Urgency) -> Request:
    """The request that the policy itself would serve last; the later admitted among equals."""
    return max(reversed(running), key=urgency)


RULES: dict[str, VictimRule] = {rule.__name__: rule for rule in (last_admitted, fewest_computed_tokens, least_urgent)}


def find_rule(name: str) -> VictimRule:
    """The rule of that name.

    Raises:
        InputError: there is none.
    """
    if name not in list(RULES):  # a config may say what cannot be hashed
        raise InputError(f"victim_rule={name}: it must be one of {', '.join(RULES)}")
    return RULES[name]
