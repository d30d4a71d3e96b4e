"""The facade over an engine core: requests in, outputs out, text at both ends."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, cast

from real.config import EngineConfig
from real.core_client import start_core
from real.errors import EngineDeadError
from real.in_progress import InProgress
from real.inputs import CheckedInput, InputChecker, Prompt, Scheduling
from real.kinds import is_text
from real.messages import AbortRequests, AddRequest, AskReport, Report, ToFront, Update, Updates
from real.outputs import RequestOutput
from real.sampling_params import SamplingParams
from real.tokenizer import Tokenizer
from schedulers import InputError


class LLMEngine:
    """An engine that is driven by hand: `add_request`, then `step` until nothing is unfinished.

    `LLM` and `AsyncLLM` are built on it. It does not know what was scheduled when; the core does, and keeps records.

    Args:
        arguments: fields of the configs in `real.config`, by name.

    Attributes:
        config: what the arguments came to.
        core: the engine core's client.
        ready: what the core told of the model and the cache.
        tokenizer: None with `skip_tokenizer`.
        inputs: checks requests.
        reports: answers of the core that nobody has taken yet.

    Raises:
        InputError: an argument is unknown or impossible, or the model cannot be read.
        EngineDeadError: the core died while it started.
    """

    def __init__(self, **arguments: Any) -> None:
        self.config = EngineConfig.from_arguments(**arguments)
        model = self.config.model
        self.core = start_core(self.config)
        try:
            # The core loads the model meanwhile.
            source = cast("str", model.tokenizer or model.model)
            self.tokenizer = None if model.skip_tokenizer else Tokenizer(source)
            self.ready = self.core.wait_until_ready()
        except BaseException:
            self.core.shutdown(grace_s=0.0)
            raise
        self.inputs = InputChecker(self.ready, self.tokenizer)
        self.reports: deque[Report] = deque()
        self._in_progress = InProgress(self.tokenizer, self.ready.eos_token_ids)
        self._undelivered: list[RequestOutput] = []

    @property
    def num_unfinished(self) -> int:
        """Requests that have not finished."""
        return len(self._in_progress)

    def add_request(
        self, request_id: str, prompt: Prompt, sampling_params: SamplingParams | None = None, **scheduling: Any
    ) -> None:
        """Check a request (see `InputChecker.check` and `Scheduling`) and send it to the core (see `submit`)."""
        params = SamplingParams() if sampling_params is None else sampling_params
        checked = self.inputs.check(f"request {request_id!r}", prompt, params)
        self.submit(request_id, checked, Scheduling.of(**scheduling))

    def submit(self, request_id: str, checked: CheckedInput, scheduling: Scheduling) -> None:
        """Send a checked request to the core.

        Args:
            request_id: unique among unfinished requests. With n > 1 the scheduler sees a request for each output, with
                the ids `request_id/0`, `request_id/1` and so on.

        Raises:
            InputError: the id is none.
            RequestRefused: the id is in use.
            EngineDeadError: the core has died.
        """
        if not is_text(request_id) or not request_id:
            raise InputError(f"request_id={request_id!r}: it must be a valid string of at least one character")
        children = self._in_progress.add(request_id, checked)
        try:
            for number, core_id, params in children:
                self.core.send(self._message(number, core_id, params, checked.prompt_token_ids, scheduling))
        except BaseException:
            self.abort_request(request_id)
            raise

    def step(self) -> list[RequestOutput]:
        """What requests gained since the last call; blocks until there is something, unless nothing is unfinished.

        Raises:
            EngineDeadError: the core has died, and with it all unfinished requests.
        """
        if not self._undelivered and self._in_progress:
            return self.process(self._receive())
        undelivered, self._undelivered = self._undelivered, []
        return undelivered

    def process(self, messages: Iterable[ToFront]) -> list[RequestOutput]:
        """Turn messages of the core into what requests gained; reports go to `reports`."""
        updates: list[Update] = []
        for message in messages:
            if isinstance(message, Updates):
                updates += message.updates
            elif isinstance(message, Report):
                self.reports.append(message)
        parts, stopped = self._in_progress.apply(updates)
        self._stop(stopped)
        return parts

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """Cancel a request, wherever it is; its last part, or None if there is none of that id."""
        part, numbers = self._in_progress.abort(request_id)
        self._stop(numbers)
        return part

    def report(self) -> Report:
        """Where the core stands, and with `keep_records` the records since the last report."""
        self.core.send(AskReport())
        while not self.reports:
            self._undelivered += self.process(self._receive())
        return self.reports.popleft()

    def forget(self) -> None:
        """Drop all unfinished requests, since the core is dead."""
        self._in_progress.clear()

    def shutdown(self) -> None:
        """End the core and its workers; unfinished requests end with it. May be called again."""
        self.core.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _message(
        self, number: int, request_id: str, params: SamplingParams, prompt_token_ids: list[int], scheduling: Scheduling
    ) -> AddRequest:
        eos, arrival = self.ready.eos_token_ids, scheduling.arrival_time
        return AddRequest(
            number=number,
            request_id=request_id,
            arrival_time=time.perf_counter() if arrival is None else arrival,
            prompt_token_ids=prompt_token_ids,
            sampling=params,
            eos_token_id=eos[0] if eos else None,
            stop_token_ids=() if params.ignore_eos else eos[1:],
            priority=scheduling.priority,
            client_id=scheduling.client_id,
            session_id=scheduling.session_id,
            slo=scheduling.slo,
            predicted_output_tokens=scheduling.predicted_output_tokens,
            cache_salt=scheduling.cache_salt,
        )

    def _receive(self) -> list[ToFront]:
        try:
            return self.core.receive()
        except EngineDeadError:
            self.forget()
            raise

    def _stop(self, numbers: list[int]) -> None:
        with contextlib.suppress(EngineDeadError):  # then it has stopped everything
            if numbers:
                self.core.send(AbortRequests(numbers))
