"""How evenly clients were served: the service of each over time, the largest gap between two, and Jain's index.

*Service* is weighted tokens: by default 1 for a prompt token and 2 for an output token (Sheng et al., "Fairness in
Serving Large Language Models", OSDI 2024, VTC). It is derived from request records, which say when a request was first
scheduled and when every output token was known, but not how much of a prompt each step computed:

- an output token counts at the moment it was known;
- a prompt counts from first scheduled to first token, at an even pace, as it does when computed in even chunks. Tokens
  found in the prefix cache count nothing, nor does what is computed again after a preemption: no client gains by it.
  The prompt of a request that ended before its first token counts nothing.

A client is *backlogged* while a request of its waits to be scheduled for the first time. (A preempted request waits as
well, but no record says when.) The gap between two clients is taken as in VTC's bound: over any stretch of time in
which both are backlogged throughout, the difference between what one and what the other was served in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from experiments.columns import Floats, Ints, RequestColumns

#: Of a prompt token that is computed, and of an output token.
USUAL_WEIGHTS = (1.0, 2.0)

#: Instants, evenly spaced from the first arrival to the last finish, at which service is looked at.
INSTANTS = 4000

#: Of more clients than this, those with the most requests are compared: pairs are many.
MAX_CLIENTS = 50

#: Of more stretches of backlog, those that no instant lies in are forgotten, so that memory does not grow with the run.
MAX_STRETCHES = 100_000

#: A client that was backlogged for less than this share of the run competed for nothing.
COMPETED = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Fairness:
    """Clients side by side.

    Attributes:
        clients: their ids, the one with the most requests first.
        time_s: the instants that the rest is about, from the first arrival to the last finish.
        service: a row a client: weighted tokens served until each instant.
        backlog: a row a client: the number of the backlogged stretch that an instant lies in, -1 outside of any.
        gap: at each instant, the largest difference in service between two clients, each backlogged since then, over
            any stretch of time that ends there; 0 while no two are backlogged.
        widest: the two clients between whom the gap grew largest; None if no two were ever backlogged at once.
    """

    clients: list[str]
    time_s: Floats
    service: Floats
    backlog: Ints
    gap: Floats
    widest: tuple[str, str] | None

    @classmethod
    def of(cls, pieces: Iterable[RequestColumns], weights: tuple[float, float] = USUAL_WEIGHTS) -> Fairness:
        """Of a run's requests piece by piece, walked twice; there must be one."""
        clients, span_s = Counter[str](), (np.inf, -np.inf)
        for piece in pieces:
            clients.update(piece.client_id)
            span_s = (min(span_s[0], piece.arrival_s.min()), max(span_s[1], piece.finish_s.max()))
        return cls.of_pieces(pieces, clients, span_s, weights)

    @classmethod
    def of_pieces(
        cls,
        pieces: Iterable[RequestColumns],
        clients: Counter[str],
        span_s: tuple[float, float],
        weights: tuple[float, float],
    ) -> Fairness:
        """As `of`, in one walk, with what another has told already.

        Args:
            clients: how many requests each has.
            span_s: the first arrival and the last finish.
            weights: of a prompt token and of an output token.
        """
        names = [name for name, _ in sorted(clients.items(), key=lambda item: (-item[1], item[0]))[:MAX_CLIENTS]]
        time_s = np.linspace(*span_s, INSTANTS)
        service = np.zeros((len(names), INSTANTS))
        waits = [Stretches(time_s) for _ in names]
        for piece in pieces:
            owners = np.array(piece.client_id, dtype=object)
            for row, name in enumerate(names):
                chosen = np.flatnonzero(owners == name)
                service[row] += weights[0] * _prompt_tokens(piece, chosen, time_s)
                service[row] += weights[1] * _output_tokens(piece, chosen, time_s)
                waits[row].add(piece, chosen)
        backlog = np.array([wait.numbers() for wait in waits])
        gap, widest = np.zeros(INSTANTS), None
        for one, other in combinations(range(len(names)), 2):
            between = _gap(service[one] - service[other], backlog[one], backlog[other])
            if between.max() > gap.max():
                widest = (names[one], names[other])
            gap = np.maximum(gap, between)
        return cls(names, time_s, service, backlog, gap, widest)

    @property
    def backlogged_s(self) -> Floats:
        """How long each client was backlogged, to the nearest instant."""
        spacing = float(self.time_s[1] - self.time_s[0])
        backlogged: Floats = (self.backlog >= 0).sum(axis=1) * spacing
        return backlogged

    @property
    def rates(self) -> Floats:
        """Service a second while backlogged; NaN for a client that hardly ever was."""
        waits = self.backlog[:, :-1] >= 0
        served = (np.diff(self.service, axis=1) * waits).sum(axis=1)
        spacing = float(self.time_s[1] - self.time_s[0])
        enough = waits.mean(axis=1) >= COMPETED
        rates: Floats = np.full(len(served), np.nan)
        return np.divide(served, waits.sum(axis=1) * spacing, out=rates, where=enough)

    @property
    def jain_index(self) -> float | None:
        """Jain's index of the `rates`: 1 when all are equal, 1/n when one of n clients gets everything.

        (sum x)^2 / (n sum x^2) over the clients that competed; None if fewer than two did. R. Jain, D. Chiu and
        W. Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.
        """
        rates = self.rates[~np.isnan(self.rates)]
        squares = float((rates**2).sum())
        return float(rates.sum() ** 2 / (len(rates) * squares)) if len(rates) > 1 and squares else None


def summarize(
    pieces: Iterable[RequestColumns], clients: Counter[str], span_s: tuple[float, float]
) -> dict[str, Any] | None:
    """The figures of `Fairness.of_pieces` for a run's summary, with the usual weights; None of a single client.

    `service` is in weighted tokens, `service_per_s` while backlogged.
    """
    if len(clients) < 2:
        return None
    fairness = Fairness.of_pieces(pieces, clients, span_s, USUAL_WEIGHTS)
    rates = [None if np.isnan(rate) else float(rate) for rate in fairness.rates]
    told = {
        client: {
            "requests": clients[client],
            "service": float(fairness.service[row, -1]),
            "backlogged_s": float(fairness.backlogged_s[row]),
            "service_per_s": rates[row],
        }
        for row, client in enumerate(fairness.clients)
    }
    return {
        "num_clients": len(clients),
        "largest_gap": float(fairness.gap.max()),
        "widest": fairness.widest,
        "jain_index": fairness.jain_index,
        "clients": told,
    }


class Stretches:
    """The stretches of time in which at least one request of a client waits for its first step."""

    def __init__(self, time_s: Floats) -> None:
        self._time_s = time_s
        self._starts, self._ends = np.empty(0), np.empty(0)

    def add(self, requests: RequestColumns, chosen: Ints) -> None:
        """These requests wait from arrival to first step, or to their end."""
        scheduled = requests.first_scheduled_s[chosen]
        starts = np.concatenate((self._starts, requests.arrival_s[chosen]))
        ends = np.concatenate((self._ends, np.where(np.isnan(scheduled), requests.finish_s[chosen], scheduled)))
        if not len(starts):
            return
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        first = np.concatenate(([True], starts[1:] > ends[:-1]))  # it begins after all before it have ended
        self._starts, self._ends = starts[first], ends[np.append(np.flatnonzero(first)[1:] - 1, len(ends) - 1)]
        if len(self._starts) > MAX_STRETCHES:
            seen = np.searchsorted(self._time_s, self._starts) < np.searchsorted(self._time_s, self._ends)
            self._starts, self._ends = self._starts[seen], self._ends[seen]

    def numbers(self) -> Ints:
        """The number of the stretch that each instant lies in; -1 outside of any."""
        if not len(self._starts):
            return np.full(len(self._time_s), -1)
        stretch = np.searchsorted(self._starts, self._time_s, side="right") - 1
        return np.where((stretch >= 0) & (self._time_s < self._ends[stretch]), stretch, -1)


def _prompt_tokens(requests: RequestColumns, chosen: Ints, time_s: Floats) -> Floats:
    """Prompt tokens computed for these requests until each instant."""
    start, end = requests.first_scheduled_s[chosen], requests.first_token_s[chosen]
    tokens = (requests.num_prompt_tokens - requests.num_cached_tokens)[chosen]
    known = ~np.isnan(start) & ~np.isnan(end)
    start, tokens = start[known], tokens[known]
    end = np.maximum(end[known], start + 1e-9)
    # The sum of ramps from start to end is piecewise linear, and so known by its slopes at their ends.
    corners = np.concatenate((start, end))
    slopes = np.concatenate((tokens / (end - start),) * 2)
    slopes[len(start) :] *= -1
    order = np.argsort(corners, kind="stable")
    corners, slope = corners[order], np.cumsum(slopes[order])
    if not len(corners):
        return np.zeros(len(time_s))
    heights = np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(corners))))
    return np.interp(time_s, corners, heights)


def _output_tokens(requests: RequestColumns, chosen: Ints, time_s: Floats) -> Floats:
    """Output tokens that these requests had at each instant."""
    owned = np.zeros(len(requests), dtype=np.bool_)
    owned[chosen] = True
    times = requests.token_times_s[np.repeat(owned, np.diff(requests.token_offsets))]
    return np.searchsorted(np.sort(times), time_s, side="right").astype(np.float64)


def _gap(difference: Floats, one: Ints, other: Ints) -> Floats:
    """At each instant, how far the difference has come from where it was at any earlier one of the same stretches."""
    both = (one >= 0) & (other >= 0)
    breaks = np.concatenate(([True], (np.diff(one) != 0) | (np.diff(other) != 0)))
    # Maxima that begin anew at each break: every stretch is lifted above all before it, and let down again.
    lift = np.cumsum(breaks) * (2 * np.abs(difference).max() + 1.0)
    highest = np.maximum.accumulate(difference + lift) - lift
    lowest = lift - np.maximum.accumulate(lift - difference)
    return np.where(both, np.maximum(highest - difference, difference - lowest), 0.0)
