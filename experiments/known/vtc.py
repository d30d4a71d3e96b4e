"""`experiment=known_vtc`: two clients that both ask for more than their share, and how far apart what they get drifts.

Ying Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024: the two overloaded clients of section 5.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.columns import Floats, RequestColumns
from experiments.composed import Composed
from experiments.known.result import Cell, Claim, KnownResult, made, point_of, tell
from experiments.report.charts import Chart, Panel
from experiments.report.style import MUTED, Look
from experiments.workloads import checks
from schedulers import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: By policy, and by client.
LOOKS = {"vtc": Look(0), "chunked_prefill": Look(1), "fcfs": Look(4, 1)}
CLIENTS = (Look(2), Look(3))


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/known_vtc.yaml for each key."""

    prompt_weight: float
    output_weight: float
    window_s: float

    def __post_init__(self) -> None:
        checks.positive("question.prompt_weight", self.prompt_weight)
        checks.positive("question.output_weight", self.output_weight)
        checks.positive("question.window_s", self.window_s)


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What two clients had of an engine until the last request arrived, as both always had requests waiting.

    Attributes:
        clients: their ids, the one that asks for less first.
        times_s: when either was served: for a prompt when it was admitted, for an output token when it was there.
        served: what each had had by then, shape (2, times); weighted tokens.
    """

    clients: tuple[str, str]
    times_s: Floats
    served: Floats

    @classmethod
    def of(cls, requests: RequestColumns, question: Question) -> Service:
        """From the records of a run with two clients.

        Raises:
            InputError: there are more or fewer clients, or one of them had nothing.
        """
        names = sorted(set(requests.client_id), key=requests.client_id.count)
        if len(names) != 2:
            raise InputError(f"workload.classes: two clients are compared, and there are {len(names)}")
        counts = np.diff(requests.token_offsets)
        owners = np.array([names.index(client_id) for client_id in requests.client_id])
        times = np.concatenate([requests.first_scheduled_s, requests.token_times_s])
        amounts = np.concatenate(
            [
                question.prompt_weight * requests.num_prompt_tokens,
                np.full(len(requests.token_times_s), question.output_weight),
            ]
        )
        whose = np.concatenate([owners, np.repeat(owners, counts)])
        order = np.argsort(times, kind="stable")
        order = order[times[order] <= requests.arrival_s.max()]
        served = np.cumsum(np.where(whose[order] == [[0], [1]], amounts[order], 0.0), axis=1)
        if not served[:, -1].all():
            raise InputError("workload.num_requests: a client had nothing before the last arrival; give more requests")
        return cls((names[0], names[1]), times[order], served)

    @property
    def gap(self) -> Floats:
        """How much more the second had had, at each time."""
        difference: Floats = self.served[1] - self.served[0]
        return difference

    def gap_at(self, time_s: float) -> float:
        """The gap at a time."""
        return float(np.interp(time_s, self.times_s, self.gap))

    def rates(self, window_s: float) -> tuple[Floats, Floats]:
        """(middles of windows, what each client had a second in each window; shape (2, windows))."""
        edges = np.arange(0.0, self.times_s[-1] + 1e-9, window_s)
        at_edges = np.array([np.interp(edges, self.times_s, served, left=0.0) for served in self.served])
        return (edges[1:] + edges[:-1]) / 2, np.diff(at_edges, axis=1) / window_s


def vtc(composed: Composed) -> None:
    """Serve both clients first come, first served, and by virtual token counters."""
    tell(known_vtc(composed), composed)


def known_vtc(composed: Composed) -> KnownResult:
    """The result, its runs made unless they are stored."""
    question = composed.question(Question)
    weights = {"scheduler.prompt_weight": question.prompt_weight, "scheduler.output_weight": question.output_weight}
    points = {name: point_of(composed, name, weights if name == "vtc" else {}) for name in LOOKS}
    runs = {name: made(point) for name, point in points.items()}
    services = {name: Service.of(stored.requests, question) for name, stored in runs.items()}
    limits = points["vtc"].limits
    longest = int(max(stored.requests.num_prompt_tokens.max() for stored in runs.values()))
    pool = limits.num_blocks * limits.block_size
    bound = 2 * max(question.prompt_weight * longest, question.output_weight * pool)
    table = [_row(name, service, runs[name].summary["makespan_s"]) for name, service in services.items()]
    return KnownResult(
        name="known_vtc",
        title="Fair between two clients: virtual token counters against first come, first served",
        paper="Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, section 5.2",
        setting=f"{points['vtc'].workload.describe()}; a KV cache of {pool:,} tokens; {points['vtc'].timing}",
        table=table,
        claims=_claims(services, bound),
        chart=_chart(services, bound, question.window_s),
    )


def _row(name: str, service: Service, makespan_s: float) -> dict[str, Cell]:
    end = float(service.times_s[-1])
    first, second = service.served[:, -1] / end
    return {
        "policy": name,
        "largest gap": float(np.abs(service.gap).max()),
        "gap at half": service.gap_at(end / 2),
        "gap at end": service.gap_at(end),
        f"{service.clients[0]} (served/s)": float(first),
        f"{service.clients[1]} (served/s)": float(second),
        "makespan (s)": makespan_s,
    }


def _claims(services: Mapping[str, Service], bound: float) -> list[Claim]:
    fair = services["vtc"]
    largest = float(np.abs(fair.gap).max())
    claims = [
        Claim(
            f"under VTC the services of two clients that are never idle differ by at most {bound:,.0f} (Theorem 4.4)",
            f"by at most {largest:,.0f}, {largest / bound:.0%} of the bound",
            largest <= bound,
        )
    ]
    for name in ("fcfs", "chunked_prefill"):
        end = float(services[name].times_s[-1])
        half, full = services[name].gap_at(end / 2), services[name].gap_at(end)
        claims.append(
            Claim(
                "under FCFS the difference grows as long as both are overloaded, without bound",
                f"{name}: {half:,.0f} after {end / 2:,.0f} s and {full:,.0f} after {end:,.0f} s, "
                f"{full / bound:.1f} times VTC's bound",
                full > max(1.5 * half, bound),
            )
        )
    less, more = fair.served[:, -1]
    claims.append(
        Claim(
            "under VTC both get the same, though one asks for twice as much",
            f"the one that asks for less gets {less / more:.1%} of what the other gets",
            bool(abs(less / more - 1) < 0.1),
        )
    )
    return claims


def _chart(services: Mapping[str, Service], bound: float, window_s: float) -> Chart:
    panels = [Panel("Difference in service received", partial(_draw_gaps, services, bound))]
    top = max(float(service.rates(window_s)[1].max(initial=1.0)) for service in services.values())
    for name, title in (("chunked_prefill", "First come, first served"), ("vtc", "VTC")):
        panels.append(Panel(f"Service a second: {title}", partial(_draw_rates, services[name], window_s, top)))
    return Chart(
        name="known_vtc",
        title="Service of two overloaded clients",
        caption="Service is tokens, weighted. Left: how much more the client that asks for more has received; dashed, "
        f"the bound of Theorem 4.4. Middle and right: what each client receives, in windows of {window_s:g} s.",
        panels=panels,
        legend={},
    )


def _draw_gaps(services: Mapping[str, Service], bound: float, axes: Axes) -> None:
    for name, service in services.items():
        look = LOOKS[name]
        times = np.linspace(0.0, service.times_s[-1], 400)
        gaps = np.interp(times, service.times_s, service.gap, left=0.0)
        axes.plot(times, gaps / 1e3, color=look.color, linestyle=look.dash, label=name)
    axes.axhline(bound / 1e3, color=MUTED[0], linewidth=1, linestyle=(0, (3, 3)))
    axes.annotate(
        f"bound: {bound:,.0f}", (0.99, bound / 1e3), xycoords=axes.get_yaxis_transform(), xytext=(0, 3),
        textcoords="offset points", ha="right", fontsize=8.5,
    )  # fmt: skip
    axes.set(xlabel="time (s)", ylabel="difference (thousand)")
    axes.legend(loc="upper left", fontsize=9)


def _draw_rates(service: Service, window_s: float, top: float, axes: Axes) -> None:
    middles, rates = service.rates(window_s)
    for client_id, look, rate in zip(service.clients, CLIENTS, rates, strict=True):
        axes.plot(middles, rate, color=look.color, marker=look.marker, markersize=4, label=client_id)
    axes.set(xlabel="time (s)", ylabel="service (weighted tokens/s)", ylim=(0, 1.25 * top))
    axes.legend(loc="upper left", fontsize=9, ncols=2)
