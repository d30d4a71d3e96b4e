"""Online use: each request is an asynchronous stream of what it gains."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self, cast

from real.core_client import CoreClient
from real.engine import LLMEngine
from real.errors import EngineDeadError
from real.inputs import Prompt
from real.messages import AskReport, Report, ToFront
from real.outputs import RequestOutput
from real.sampling_params import SamplingParams
from real.tokenizer import Messages
from schedulers import InputError, RequestRefused


class AsyncLLM:
    """A model that answers many clients at once; made as `LLM` is, with the same arguments and errors.

    All methods but `shutdown` must be called on one event loop; another one can follow when it is closed. A thread
    waits for the engine core and hands what it says to the loop; everything else happens there, so that nothing needs a
    lock.

    Attributes:
        engine: what it is built on.
    """

    def __init__(self, model: str | None = None, **arguments: Any) -> None:
        self.engine = LLMEngine(model=model, **arguments)
        self._streams: dict[str, _Stream] = {}
        self._askers: deque[asyncio.Future[Report]] = deque()
        self._ids = itertools.count()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: What the thread has heard and the loop has not taken yet.
        self._heard: deque[list[ToFront] | EngineDeadError] = deque()
        self._error: EngineDeadError | None = None
        weakref.finalize(self, self.engine.core.shutdown)  # else the thread would keep the core from its end

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        **scheduling: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Continue a prompt; yields what was added since the last time, until it is finished.

        What comes while the consumer is busy is merged into one part. A consumer that leaves cancels the request.

        Args:
            prompt: text, or token ids.
            request_id: unique among unfinished requests; None: one is made up.
            scheduling: fields of `real.inputs.Scheduling`, such as priority.

        Raises:
            InputError: the prompt or its parameters are impossible.
            RequestRefused: the engine refused the request.
            EngineDeadError: the core died.
        """
        self._listen()
        if request_id is None:
            request_id = f"generate-{next(self._ids)}"
        self.engine.add_request(request_id, prompt, sampling_params, **scheduling)
        stream = self._streams[request_id] = _Stream()
        try:
            finished = False
            while not finished:
                part = await stream.get()
                if part.error is not None:
                    raise RequestRefused(part.error)
                finished = part.finished
                yield part
        finally:
            if self._streams.get(request_id) is stream:
                del self._streams[request_id]
                self.engine.abort_request(request_id)

    def chat(
        self, messages: Messages, sampling_params: SamplingParams | None = None, **arguments: Any
    ) -> AsyncIterator[RequestOutput]:
        """Answer a chat, written out by the model's own template; otherwise as `generate`."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise InputError("chat needs the model's tokenizer, and the engine has skip_tokenizer=True")
        return self.generate(tokenizer.encode_chat(messages), sampling_params, **arguments)

    def abort(self, request_id: str) -> None:
        """Cancel a request; its stream ends with the finish reason "abort". An id that is not live is passed over."""
        part = self.engine.abort_request(request_id)
        if part is not None:
            self._deliver([part])

    async def report(self) -> Report:
        """Where the core stands, and with `keep_records` the records since the last report."""
        self._listen()
        asker: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._askers.append(asker)
        self.engine.core.send(AskReport())
        return await asker

    def shutdown(self) -> None:
        """End the engine's processes; unfinished streams end with an EngineDeadError. May be called again."""
        self.engine.shutdown()  # the thread hears of it, and tells the loop
        if self._thread is not None:
            self._thread.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.shutdown)

    # -- between the core and the streams -----------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take what comes on the running event loop from now on.

        Raises:
            InputError: another loop does, and is not closed.
            EngineDeadError: nothing will come.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise InputError("this AsyncLLM belongs to another event loop: call it there, or close that one first")
            self._loop = loop
            for request_id in list(self._streams):  # of consumers that ended with their loop
                del self._streams[request_id]
                self.engine.abort_request(request_id)
            self._take_heard()  # what came while there was no loop
        if self._error is not None:
            raise self._error
        if self._thread is None:
            arguments = (self.engine.core, self._heard, weakref.ref(self))
            self._thread = threading.Thread(target=_hear, args=arguments, name="core updates", daemon=True)
            self._thread.start()

    def poke(self) -> None:
        """Let the loop take what the thread has heard; the thread calls this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed; the next one looks by itself
            cast("asyncio.AbstractEventLoop", self._loop).call_soon_threadsafe(self._take_heard)

    def _take_heard(self) -> None:
        while self._heard:
            heard = self._heard.popleft()
            if isinstance(heard, EngineDeadError):
                self._die(heard)
            else:
                self._process(heard)

    def _process(self, messages: list[ToFront]) -> None:
        self._deliver(self.engine.process(messages))
        reports = self.engine.reports
        while reports:
            asker = self._askers.popleft()
            if not asker.done():
                asker.set_result(reports.popleft())

    def _deliver(self, parts: list[RequestOutput]) -> None:
        for part in parts:
            stream = self._streams.get(part.request_id)
            if stream is None:
                continue
            stream.put(part)
            if part.finished:
                del self._streams[part.request_id]

    def _die(self, error: EngineDeadError) -> None:
        if self._error is not None:
            return
        self._error = error
        self.engine.forget()
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()
        for asker in self._askers:
            if not asker.done():
                asker.set_exception(error)
        self._askers.clear()


def _hear(
    core: CoreClient, heard: deque[list[ToFront] | EngineDeadError], ref: weakref.ReferenceType[AsyncLLM]
) -> None:
    """What the thread runs until the core ends, or fails in whatever way; it does not keep the AsyncLLM alive."""
    dead = False
    while not dead:
        try:
            heard.append(core.receive())
        except Exception as error:  # noqa: BLE001 - nobody else would tell those who wait
            said = f"{type(error).__name__}: {error}"
            heard.append(error if isinstance(error, EngineDeadError) else EngineDeadError(said))
            dead = True
        llm = ref()
        if llm is not None:
            llm.poke()
        del llm


class _Stream:
    """What one consumer has yet to take: at most one part, which grows while it waits."""

    def __init__(self) -> None:
        self._part: RequestOutput | None = None
        self._error: EngineDeadError | None = None
        self._news = asyncio.Event()

    def put(self, part: RequestOutput) -> None:
        """Add a part; never waits."""
        if self._part is None:
            self._part = part
        else:
            self._part.add(part)
        self._news.set()

    def fail(self, error: EngineDeadError) -> None:
        """Let the consumer end with `error`, once it has taken what there is."""
        self._error = error
        self._news.set()

    async def get(self) -> RequestOutput:
        """Everything since the last call; waits until there is something."""
        await self._news.wait()
        self._news.clear()
        part, self._part = self._part, None
        if part is not None:
            if self._error is not None:
                self._news.set()
            return part
        raise self._error or EngineDeadError("the engine was shut down")
