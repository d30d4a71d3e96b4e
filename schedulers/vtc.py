"""VTC: fair between clients, by counting what each has been served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from schedulers import checks
from schedulers.batch import Batch
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.client_queues import ClientQueues
from schedulers.errors import InputError
from schedulers.request import Request, Status
from schedulers.scheduler import Limits
from schedulers.step import SchedulerOutput, StepEvents, StepResult


class VTC(ChunkedPrefill):
    """Virtual token counter: the next request is always one of the client that has been served least.

    Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024. A client is charged for a prompt when it is
    first admitted, and for each output token as it comes, in proportion to its weight. A client that comes back from
    being away is lifted to the least served of those that wait, so that it cannot save up service. Then the services of
    two clients that always have requests waiting never differ by more than
    2 max(prompt_weight x longest prompt, output_weight x tokens that the cache holds) (Theorem 4.4, for equal weights).

    Args:
        limits: what the engine can hold.
        prompt_weight: service that a prompt token counts as; cached ones count too.
        output_weight: service that an output token counts as.
        client_weights: by client id, how much service is its fair share; 1 for whoever is not named.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow; the least urgent are the most served.
        seed: not used.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        prompt_weight: float = 1.0,
        output_weight: float = 2.0,
        client_weights: Mapping[str, float] | None = None,
        max_chunk: int | None = None,
        victim_rule: str = "last_admitted",
        seed: int = 0,
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        checks.not_negative("prompt_weight", prompt_weight)
        checks.not_negative("output_weight", output_weight)
        weights: Any = client_weights or {}  # a config may say anything
        if not isinstance(weights, Mapping):
            raise InputError(f"client_weights={client_weights!r}: it must hold weights by client, such as {{alice: 2}}")
        for client_id, weight in weights.items():
            checks.positive(f"client_weights.{client_id}", weight)
        self.prompt_weight = prompt_weight
        self.output_weight = output_weight
        self.client_weights: dict[str, float] = {str(client_id): weight for client_id, weight in weights.items()}
        #: Service that each client has had, each unit divided by its weight, and lifts.
        self.counters: dict[str, float] = {}
        self.waiting: ClientQueues = ClientQueues(self.order, self.counters.__getitem__)

    def urgency(self, request: Request) -> tuple[float, float]:
        """Service of its client, then arrival."""
        return self.counters[request.client_id], request.arrival_time

    def add_request(self, request: Request) -> None:
        """Enqueue an arrival; lift its client if it had nobody waiting."""
        super().add_request(request)
        client_id, queues = request.client_id, self.waiting.queues
        counter = self.counters.setdefault(client_id, 0.0)
        if len(queues[client_id]) == 1:
            others = [self.counters[other] for other in queues if other != client_id]
            if not others and self.waiting.last_to_leave is not None:
                others = [self.counters[self.waiting.last_to_leave]]
            self.counters[client_id] = max(counter, min(others, default=counter))

    def candidates(self, batch: Batch, now: float) -> Iterable[Request]:
        """The first of the least served client, again and again, each charged for its prompt once it is admitted."""
        for request in self.waiting:
            is_new = request.first_scheduled_time is None
            yield request
            if is_new and request.status is Status.RUNNING:
                self._charge(request, self.prompt_weight * request.num_prompt_tokens)

    def update_from_output(self, output: SchedulerOutput, result: StepResult, now: float) -> StepEvents:
        """Account for a step, and charge for its tokens."""
        events = super().update_from_output(output, result, now)
        finished = {request.request_id: request for request in events.finished}
        for request_id, tokens in events.new_token_ids.items():
            self._charge(finished.get(request_id) or self.live[request_id], self.output_weight * len(tokens))
        return events

    def _charge(self, request: Request, service: float) -> None:
        self.counters[request.client_id] += service / self.client_weights.get(request.client_id, 1.0)
