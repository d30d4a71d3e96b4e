"""The contract between a scheduler and the world that runs its steps, and the mechanism that all policies share.

A world, simulated or real, drives a scheduler like this:

    scheduler.add_request(request)                                 # arrivals, at any time
    output = scheduler.schedule(now)                               # decide a step
    result = ...                                                   # run it: let time pass, or run the model
    events = scheduler.update_from_output(output, result, now)     # learn what was sampled

Policies are subclasses of `Scheduler`. The smallest override one decision (`order`, `admit`, `chunk`, `victim`); others
write `compose`; `SchedulerContract` is for those that share nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from schedulers.batch import Batch
from schedulers.errors import InputError, RequestRefused, SchedulerError, blaming
from schedulers.kv_cache import KVCache
from schedulers.request import FinishReason, Request, Status
from schedulers.step import SchedulerOutput, StepEvents, StepResult
from schedulers.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold, which no policy may exceed.

    Attributes:
        token_budget: most tokens computed in a step, over all requests (vLLM: max_num_batched_tokens).
        max_num_seqs: most requests that hold a slot at once.
        num_blocks: KV blocks in the cache.
        block_size: tokens in a KV block.
        max_model_len: most tokens of a request, prompt and output together.
        prefix_caching: whether full blocks can be found again by their content.
    """

    token_budget: int
    max_num_seqs: int
    num_blocks: int
    block_size: int = 16
    max_model_len: int = 131072
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_num_seqs", "num_blocks", "block_size", "max_model_len"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name}={value!r}: it must be a whole number of at least 1")
        if not isinstance(self.prefix_caching, bool):
            raise InputError(f"prefix_caching={self.prefix_caching!r}: it must be true or false")

    @property
    def max_request_tokens(self) -> int:
        """Longest request that can be served: what the model takes and the whole cache holds."""
        return min(self.max_model_len, self.num_blocks * self.block_size)


class SchedulerContract(Protocol):
    """All that a world asks of a scheduler."""

    limits: Limits
    kv_cache: KVCache

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""

    @property
    def num_waiting(self) -> int:
        """Requests that do not, preempted ones included."""

    def add_request(self, request: Request) -> None:
        """Take an arrival. Raises RequestRefused, and changes nothing, if it can never be served."""

    def abort_request(self, request_id: str, now: float) -> Request | None:
        """Cancel a live request and free what it owns; None if there is none of that id."""

    def schedule(self, now: float) -> SchedulerOutput:
        """Decide the next step."""

    def update_from_output(self, output: SchedulerOutput, result: StepResult, now: float) -> StepEvents:
        """Account for a step that was run: progress, new tokens, finished requests."""


class Scheduler:
    """The mechanism, with the decisions of chunked prefill as defaults; policies override what they decide otherwise.

    Args:
        limits: what the engine can hold.
        seed: for policies that draw random numbers; a world passes the seed of its run.
    """

    #: True if `order` depends on `now` or on progress: the queue is then sorted anew each step.
    order_changes = False

    def __init__(self, limits: Limits, *, seed: int = 0) -> None:
        self.limits = limits
        self.seed = seed
        self.kv_cache = KVCache(limits.num_blocks, limits.block_size, limits.prefix_caching)
        #: Requests that hold a slot, in the order they were admitted.
        self.running: list[Request] = []
        #: Requests that do not, in the policy's order.
        self.waiting = WaitingQueue(self.order)
        #: All requests that have not ended, by id.
        self.live: dict[str, Request] = {}
        self._arrival_numbers: dict[str, int] = {}
        self._num_arrivals = 0
        self._finished_ids: list[str] = []
        self._step = 0

    # -- decisions of a policy ----------------------------------------------------------------------------------------

    def order(self, request: Request, now: float) -> Any:
        """The sort key of a waiting request; equal keys keep the order of arrival. Default: arrival time."""
        return request.arrival_time

    def candidates(self, batch: Batch, now: float) -> Iterable[Request]:
        """Waiting requests in the order in which they are tried, for orders that one key each cannot tell.

        It is asked for the next only after the one before was admitted. Default: the queue, sorted by `order`.
        """
        return batch.waiting

    def admit(self, request: Request, batch: Batch) -> bool:
        """Whether a waiting request may start now; if not, nobody behind it does either. Default: yes."""
        return True

    def chunk(self, request: Request, batch: Batch) -> int:
        """Most tokens of a prompt to compute in this step. Default: what is left of the budget."""
        return batch.budget_left

    def victim(self, running: Sequence[Request], candidate: Request) -> Request | None:
        """Who of `running` (in admission order) loses its place to `candidate`; None or the candidate: nobody.

        The candidate is a running request that cannot grow, or a waiting one that finds no room. Default: the request
        admitted last makes room for a running one, nobody for a waiting one.
        """
        return running[-1] if candidate.status is Status.RUNNING else None

    def compose(self, batch: Batch, now: float) -> None:
        """Fill the step. Default: decodes first, then prompts in progress, then arrivals, in chunks within the budget.

        After a preemption nobody is admitted in the same step, since memory is short.
        """
        prefills = []
        for request in batch.running:
            if request.num_tokens - request.num_computed_tokens == 1:
                batch.schedule(request)
            else:
                prefills.append(request)
        for request in prefills:
            batch.schedule(request, self.chunk(request, batch))
        if batch.preempted:
            return
        for request in self.candidates(batch, now):
            if not (self.admit(request, batch) and batch.schedule(request, self.chunk(request, batch))):
                break

    def ended(self, request: Request) -> None:
        """A request has finished or was aborted (`finish_reason` says), for policies that learn. Default: nothing."""

    # -- the contract -------------------------------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Requests that do not, preempted ones included."""
        return len(self.waiting)

    def add_request(self, request: Request) -> None:
        """Enqueue an arrival.

        Raises:
            RequestRefused: its id is live, it was used before, or it can never fit; nothing is changed.
        """
        request_id, limit = request.request_id, self.limits.max_request_tokens
        if request_id in self.live:
            raise RequestRefused(f"request {request_id!r} is already being served; ids of live requests must differ")
        if request.status is not Status.WAITING or request.num_computed_tokens:
            raise RequestRefused(f"{request!r} was served before; make a new Request")
        num_prompt, num_wanted = request.num_prompt_tokens, request.max_tokens or 1
        if num_prompt + num_wanted > limit:
            whose = "the model's limit" if limit == self.limits.max_model_len else "the whole KV cache"
            raise RequestRefused(
                f"request {request_id!r}: {num_prompt} prompt tokens and {num_wanted} output tokens exceed "
                f"{whose} of {limit} tokens"
            )
        request.token_limit = limit if request.max_tokens is None else num_prompt + request.max_tokens
        with blaming(self, self._step):
            self.waiting.add(request, self._num_arrivals, request.arrival_time)
        self.live[request_id] = request
        self._arrival_numbers[request_id] = self._num_arrivals
        self._num_arrivals += 1

    def abort_request(self, request_id: str, now: float) -> Request | None:
        """Cancel a live request, wherever it is, and free everything it owns; None if there is none of that id."""
        request = self.live.get(request_id)
        if request is None:
            return None
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, FinishReason.ABORT, now)
        return request

    def schedule(self, now: float) -> SchedulerOutput:
        """Decide the next step; it may be empty.

        Raises:
            SchedulerError: the policy raised or asked for what no step can do; the message names the step.
        """
        self._step += 1
        batch = Batch(self, self._step, now)
        with blaming(self, self._step):
            if self.order_changes:
                self.waiting.resort(now)
            self.compose(batch, now)
        finished_ids, self._finished_ids = self._finished_ids, []
        return batch.output(finished_ids)

    def update_from_output(self, output: SchedulerOutput, result: StepResult, now: float) -> StepEvents:
        """Account for a step that was run.

        Results of requests that were aborted or preempted since are dropped.

        Raises:
            SchedulerError: the world sampled nothing for a request that was to sample.
        """
        step = output.step
        requests = self.live
        sampled = result.sampled_token_ids
        accepted = sampled
        finished: list[Request] = []
        for request_id, num_scheduled in output.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is None or request.in_step != step:
                accepted = {other: tokens for other, tokens in accepted.items() if other != request_id}
                continue
            request.in_step = 0
            num_computed = request.num_computed_tokens = request.num_computed_tokens + num_scheduled
            num_known = request.num_tokens
            if num_computed < num_known:
                continue
            new_tokens = sampled.get(request_id)
            if not new_tokens:
                raise SchedulerError(f"step {step}: no token was sampled for request {request_id!r}")
            num_tokens = num_known
            for token in new_tokens:
                request.output_token_ids.append(token)
                request.token_times.append(now)
                num_tokens += 1
                request.num_tokens = num_tokens
                if token in request.stop_ids and request.num_output_tokens >= request.min_tokens:
                    request.stop_token = token
                    self._finish(request, FinishReason.STOP, now)
                elif num_tokens >= request.token_limit:
                    self._finish(request, FinishReason.LENGTH, now)
                else:
                    continue
                finished.append(request)
                if num_tokens - num_known < len(new_tokens):
                    accepted = {**accepted, request_id: new_tokens[: num_tokens - num_known]}
                break
        if finished:
            self.running = [request for request in self.running if request.status is Status.RUNNING]
        return StepEvents(accepted, finished)

    # -- for the batch ------------------------------------------------------------------------------------------------

    def enqueue(self, request: Request, now: float) -> None:
        """Put a request into the waiting queue; equal keys keep the order of first arrival."""
        self.waiting.add(request, self._arrival_numbers[request.request_id], now)

    def _finish(self, request: Request, reason: FinishReason, now: float) -> None:
        self.kv_cache.free(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        request.finish_time = now
        request.in_step = 0
        del self.live[request.request_id], self._arrival_numbers[request.request_id]
        if request.first_scheduled_time is not None:
            self._finished_ids.append(request.request_id)
        self.ended(request)
