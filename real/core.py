"""The engine core: one scheduler, one executor, and the loop between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, cast

from real.config import EngineConfig
from real.executors import Executor
from real.messages import AbortRequests, AddRequest, AskReport, Ready, Report, ToCore, ToFront, Update, Updates
from real.models import read_architecture
from schedulers import FinishReason, Request, RequestRecord, RequestRefused, StepRecord, StepResult
from schedulers.decisions import Arrival, StepDecisions
from schedulers.invariants import StepChecker

#: Both processes read it: on Linux it counts from the same moment for all of them.
now = time.perf_counter


class EngineCore:
    """Takes requests, runs steps, tells what each brought.

    It makes the same three calls in the same order as the simulated engine: `schedule`, run the step (here: on the
    executor), `update_from_output`; requests and aborts come in between steps. Times are those of `time.perf_counter`,
    in seconds.

    Attributes:
        config: as given.
        ready: what a front must know of the model and the cache.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Load the model and make the scheduler.

        Raises:
            InputError: something in the config is impossible; the message names it.
        """
        self.config = config
        architecture = read_architecture(cast("str", config.model.model))
        # What limits and policy refuse should not cost the loading of a model.
        likely_blocks = config.cache.num_blocks or -(-architecture.max_model_len // config.cache.block_size)
        config.scheduler.make(config.limits(likely_blocks, architecture.max_model_len), config.seed)
        self.executor: Executor = cast("Callable[[EngineConfig], Executor]", config.parallel.executor)(config)
        try:
            limits = config.limits(self.executor.num_kv_blocks, architecture.max_model_len)
            self.scheduler = config.scheduler.make(limits, config.seed)
        except BaseException:
            self.executor.shutdown()
            raise
        self._checker = StepChecker(self.scheduler)
        self.ready = Ready(
            vocab_size=architecture.vocab_size,
            eos_token_ids=architecture.eos_token_ids,
            max_model_len=limits.max_model_len,
            max_request_tokens=limits.max_request_tokens,
            num_kv_blocks=limits.num_blocks,
        )
        self._live: dict[str, Request] = {}
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._num_steps = self._num_tokens = 0
        self._step_records: list[StepRecord] = []
        self._request_records: list[RequestRecord] = []
        self._decisions: list[StepDecisions] = []
        #: What came since the last step, while decisions are kept.
        self._news: list[Arrival | str] = []

    @property
    def has_work(self) -> bool:
        """A request is unfinished."""
        return bool(self._live)

    def turn(self, messages: Iterable[ToCore]) -> list[ToFront]:
        """Do what these messages say, then run a step if there is work; what is to be told to the front.

        Raises:
            SchedulerError, WorkerDiedError: as `step`; the core is of no use after that.
        """
        answers: list[ToFront] = []
        updates = []
        for message in messages:
            if isinstance(message, AddRequest):
                refusal = self.add_request(message)
                if refusal is not None:
                    updates.append(refusal)
            elif isinstance(message, AbortRequests):
                self.abort_requests(message.numbers)
            elif isinstance(message, AskReport):
                answers.append(self.report())
        if self.has_work:
            updates += self.step()
        if updates:
            answers.append(Updates(updates))
        return answers

    def add_request(self, message: AddRequest) -> Update | None:
        """Take a request; the update that says so if it is refused."""
        if self.scheduler.num_waiting >= self.config.scheduler.max_waiting:
            refusal = (
                f"request {message.request_id!r}: the queue is full, {self.scheduler.num_waiting} requests wait "
                f"(max_waiting={self.config.scheduler.max_waiting}); try again later"
            )
            return Update(message.number, finish_reason="error", error=refusal)
        try:
            request = _request(message)
            self.scheduler.add_request(request)
        except RequestRefused as refused:
            return Update(message.number, finish_reason="error", error=str(refused))
        self._live[request.request_id] = request
        self._numbers[request.request_id] = message.number
        self._ids[message.number] = request.request_id
        if self.config.keep_decisions:
            self._news.append(Arrival.of(request))
        return None

    def abort_requests(self, numbers: Iterable[int]) -> None:
        """Cancel requests, wherever they are, and free what they own; those that have ended are passed over."""
        for number in numbers:
            request_id = self._ids.get(number)
            request = None if request_id is None else self.scheduler.abort_request(request_id, now())
            if request is not None:
                if self.config.keep_decisions:
                    self._news.append(request.request_id)
                self._end(request)

    def step(self) -> list[Update]:
        """Run one step; what it brought to each request that got a token, or its prompt's log-probabilities.

        Raises:
            SchedulerError: the policy raised, or broke what every step must satisfy.
            WorkerDiedError: a worker did not survive the step.
        """
        scheduler = self.scheduler
        start = now()
        output = scheduler.schedule(start)
        self._checker.check(output, self._live)
        num_running, num_waiting, kv_usage = scheduler.num_running, scheduler.num_waiting, scheduler.kv_cache.usage
        result = self.executor.execute_model(output)
        end = now()
        events = scheduler.update_from_output(output, result, end)
        self._num_steps += 1
        self._num_tokens += output.total_num_scheduled_tokens
        if self.config.keep_records:
            self._step_records.append(StepRecord.of(output, start, end, num_running, num_waiting, kv_usage))
        if self.config.keep_decisions:
            self._decisions.append(StepDecisions.of(output, result, self._news, start, end))
            self._news = []
        updates = self._updates(events.new_token_ids, result)
        for request in events.finished:
            self._end(request)
        return updates

    def report(self) -> Report:
        """Where the core stands, and the records since the last report."""
        report = Report(
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            num_free_blocks=self.scheduler.kv_cache.num_free_blocks,
            num_steps=self._num_steps,
            num_tokens=self._num_tokens,
            step_records=self._step_records,
            request_records=self._request_records,
            decisions=self._decisions,
        )
        self._step_records, self._request_records, self._decisions = [], [], []
        return report

    def shutdown(self) -> None:
        """End the workers. May be called again."""
        self.executor.shutdown()

    def _updates(self, new_token_ids: Any, result: StepResult) -> list[Update]:
        live, numbers = self._live, self._numbers
        logprobs = getattr(result, "logprobs", None) or {}
        prompt_logprobs = getattr(result, "prompt_logprobs", None) or {}
        updates = []
        for request_id, tokens in new_token_ids.items():
            request = live[request_id]
            reason = request.finish_reason
            updates.append(
                Update(
                    number=numbers[request_id],
                    new_token_ids=list(tokens),
                    finish_reason=None if reason is None else reason.value,
                    stop_token=request.stop_token if reason is FinishReason.STOP else None,
                    num_cached_tokens=request.num_cached_tokens if request.num_output_tokens == len(tokens) else 0,
                    logprobs=logprobs[request_id][: len(tokens)] if request_id in logprobs else None,
                    prompt_logprobs=prompt_logprobs.get(request_id),
                )
            )
        return updates

    def _end(self, request: Request) -> None:
        request_id = request.request_id
        del self._live[request_id], self._ids[self._numbers.pop(request_id)]
        if self.config.keep_records:
            self._request_records.append(RequestRecord.of(request))


def _request(message: AddRequest) -> Request:
    sampling = message.sampling
    return Request(
        message.request_id,
        message.arrival_time,
        message.prompt_token_ids,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        eos_token_id=message.eos_token_id,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=(*sampling.stop_token_ids, *message.stop_token_ids),
        priority=message.priority,
        client_id=message.client_id,
        session_id=message.session_id,
        slo=message.slo,
        predicted_output_tokens=message.predicted_output_tokens,
        cache_salt=message.cache_salt,
        prompt_logprobs=sampling.prompt_logprobs is not None,
        sampling=sampling,
    )
