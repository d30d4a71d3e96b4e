"""A cluster: several simulated engines behind a router, in one environment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import simpy

from schedulers import Request, RequestRecord, SchedulerContract, SchedulerError, StepRecord
from schedulers.decisions import StepDecisions
from schedulers.errors import blaming
from sim.costs import CostModel, arrival_s
from sim.engine import SimEngine, arrive
from sim.routing import Router
from sim.tokens import TokenSource


class Cluster:
    """Replicas of one engine, each with a scheduler, a KV cache and steps of its own; a router shares requests out.

    A request's way to the engine, where the cost model knows of one, is before the router; sending it on takes no time.
    Requests that the router holds wait in order of arrival.

    Args:
        env: the environment whose clock all engines live by; seconds.
        schedulers: one for each engine, alike but apart.
        router: asked for every request.
        cost: prices the steps of all engines.
        on_step: called with the record of every step of every engine, at its end.
        on_finish: called with the record of every request that ended.
        on_decisions: called with the decisions of every step of every engine, at its end, if they are wanted.
    """

    def __init__(
        self,
        env: simpy.Environment,
        schedulers: Sequence[SchedulerContract],
        router: Router,
        cost: CostModel,
        on_step: Callable[[StepRecord], Any],
        on_finish: Callable[[RequestRecord], Any],
        on_decisions: Callable[[StepDecisions], Any] | None = None,
    ) -> None:
        self.env = env
        self._router = router
        self._on_finish = on_finish
        self._held: deque[tuple[Request, int]] = deque()
        self.engines = [
            SimEngine(
                env,
                scheduler,
                cost,
                TokenSource(),
                on_step,
                self._ended,
                on_decisions=on_decisions,
                replica=replica,
            )
            for replica, scheduler in enumerate(schedulers)
        ]

    @property
    def num_held(self) -> int:
        """Requests that came to the router and that no engine has."""
        return len(self._held)

    def submit(self, request: Request, num_output_tokens: int) -> None:
        """A request arrives now; its output will have `num_output_tokens` tokens unless a limit cuts it.

        Raises:
            RequestRefused: the engine that it was sent to can never serve it.
            SchedulerError: the router failed.
        """
        if self._held or not self._send(request, num_output_tokens):
            self._held.append((request, num_output_tokens))

    def _send(self, request: Request, num_output_tokens: int) -> bool:
        """Send a request to an engine; False if the router holds it."""
        with blaming(self._router, request.request_id):
            index = self._router.route(request, self.engines)
        if index is None:
            return False
        if index not in range(len(self.engines)):
            raise SchedulerError(
                f"{type(self._router).__name__} routes request {request.request_id!r} to engine {index!r}; "
                f"it must be a number from 0 to {len(self.engines) - 1}, or None"
            )
        self.engines[index].submit(request, num_output_tokens)
        return True

    def _ended(self, record: RequestRecord) -> None:
        self._on_finish(record)
        while self._held and self._send(*self._held[0]):
            self._held.popleft()


def simulate_cluster(
    arrivals: Iterable[tuple[Request, int]],
    schedulers: Sequence[SchedulerContract],
    router: Router,
    cost: CostModel,
    on_step: Callable[[StepRecord], Any],
    on_finish: Callable[[RequestRecord], Any],
    on_decisions: Callable[[StepDecisions], Any] | None = None,
    follow_ups: Callable[[RequestRecord], Sequence[tuple[Request, int]]] = lambda _: (),
) -> Cluster:
    """Run a cluster over a workload until every request has ended; what follows a request is as for one engine.

    Raises:
        RequestRefused: a request can never be served.
        SchedulerError: the policy or the router failed, or the router holds requests for ever.
    """
    env, way_s = simpy.Environment(), arrival_s(cost)

    def ended(record: RequestRecord) -> None:
        on_finish(record)
        if following := follow_ups(record):
            env.process(arrive(cluster, following, way_s))

    cluster = Cluster(env, schedulers, router, cost, on_step, ended, on_decisions)
    env.process(arrive(cluster, arrivals, way_s))
    env.run()
    if cluster.num_held:
        raise SchedulerError(
            f"{type(router).__name__} holds {cluster.num_held} requests, and no engine has one that could end"
        )
    return cluster
