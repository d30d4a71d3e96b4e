"""What a run was like, in numbers. Every metric is defined in the function that computes it.

Latencies are per request and in seconds; they are taken over *completed* requests (not aborted), and the others are
counted. NaN marks a request for which a latency does not exist; in a summary, which is JSON, it is None.
"""

from __future__ import annotations

import numpy as np

from experiments.columns import Bools, Floats, Ints, RequestColumns
from schedulers.request import SLO


def ttft_s(requests: RequestColumns) -> Floats:
    """Time to first token: first token minus arrival."""
    return np.where(requests.completed, requests.first_token_s - requests.arrival_s, np.nan)


def e2e_s(requests: RequestColumns) -> Floats:
    """End-to-end latency: finish, which is when the last token was known, minus arrival."""
    return np.where(requests.completed, requests.finish_s - requests.arrival_s, np.nan)


def tpot_s(requests: RequestColumns) -> Floats:
    """Time per output token after the first: (E2E - TTFT) / (output tokens - 1); a single token has none."""
    gaps = np.where(requests.num_output_tokens > 1, requests.num_output_tokens - 1.0, np.nan)
    return (e2e_s(requests) - ttft_s(requests)) / gaps


def itl_s(requests: RequestColumns) -> Floats:
    """Inter-token latencies: every gap between consecutive tokens of a request, of all requests in one flat array."""
    if len(requests.token_times_s) < 2:
        return np.empty(0)
    kept = np.repeat(requests.completed, np.diff(requests.token_offsets))[1:]
    borders = requests.token_offsets[1:-1]
    kept[borders[(borders > 0) & (borders <= len(kept))] - 1] = False  # from one request's last to the next one's first
    return np.diff(requests.token_times_s)[kept]


def queueing_s(requests: RequestColumns) -> Floats:
    """Queueing time: first scheduled minus arrival. Waiting after a preemption is not in it."""
    return np.where(requests.completed, requests.first_scheduled_s - requests.arrival_s, np.nan)


def meets_slo(requests: RequestColumns, slo: SLO | None) -> Bools | None:
    """Which requests met every target they have: their own, or else the run's. None when there is no target at all.

    An aborted request meets nothing; the TPOT target does not bind a request with a single token.
    """
    return meets_targets(requests, slo) if has_targets(requests, slo).any() else None


def has_targets(requests: RequestColumns, slo: SLO | None) -> Bools:
    """Which requests have a target to meet."""
    return ~np.isnan(_targets(requests, slo)).all(axis=0)


def meets_targets(requests: RequestColumns, slo: SLO | None) -> Bools:
    """As `meets_slo`; where there is no target, whoever completes meets it."""
    ttft_target, tpot_target = _targets(requests, slo)
    missed = (ttft_s(requests) > ttft_target) | (tpot_s(requests) > tpot_target)  # a comparison with NaN is False
    return requests.completed & ~missed


def histogram_edges(largest: int) -> Ints:
    """Lower edges of the bins for tokens per step, and the last bin's upper edge: 0, 1, 2, 3, 4, 6, 8, 12, 16, ...

    Two bins an octave, and the same whatever the data, so that histograms of different runs can be added and compared.
    """
    edges = [0, 1, 2, 3]
    while edges[-1] <= largest:
        edges.append(2 * edges[-2])
    return np.array(edges, dtype=np.int64)


#: Lower edges of bins and the last one's upper edge, and what is in each bin.
Histogram = tuple[Ints, Ints]


def token_histogram(tokens: Ints) -> Histogram:
    """(edges, counts): how many steps had a number of tokens in [edges[i], edges[i + 1])."""
    edges = histogram_edges(int(tokens.max(initial=0)))
    bins = np.searchsorted(edges, tokens, side="right") - 1
    return edges, np.bincount(bins, minlength=len(edges) - 1)


def add_histograms(one: Histogram, other: Histogram) -> Histogram:
    """The histogram of the tokens of both."""
    short, long = sorted((one, other), key=lambda histogram: len(histogram[0]))
    return long[0], long[1] + np.pad(short[1], (0, len(long[1]) - len(short[1])))


def _targets(requests: RequestColumns, slo: SLO | None) -> Floats:
    """The targets for TTFT and for TPOT of each request, shape (2, requests); NaN: none."""
    default = slo or SLO()
    return np.array(
        [_with_default(requests.slo_ttft_s, default.ttft_s), _with_default(requests.slo_tpot_s, default.tpot_s)]
    )


def _with_default(targets: Floats, default: float | None) -> Floats:
    return targets if default is None else np.where(np.isnan(targets), default, targets)
