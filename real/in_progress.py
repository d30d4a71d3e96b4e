"""What the front knows of requests that have not finished: which output each update belongs to, and its text so far."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from real.detokenizer import Detokenizer
from real.inputs import CheckedInput
from real.messages import Update
from real.outputs import CompletionOutput, RequestOutput
from real.sampling_params import SamplingParams
from real.tokenizer import Tokenizer
from schedulers import RequestRefused


@dataclass(slots=True)
class _LiveRequest:
    """A request, and those of its `n` outputs that still grow, by number."""

    request_id: str
    checked: CheckedInput
    outputs: dict[int, _LiveOutput] = field(default_factory=dict)

    def part(self, **fields: Any) -> RequestOutput:
        return RequestOutput(self.request_id, self.checked.prompt, self.checked.prompt_token_ids, **fields)


@dataclass(slots=True)
class _LiveOutput:
    """One output while it grows."""

    request: _LiveRequest
    index: int
    detokenizer: Detokenizer | None


class InProgress:
    """Requests in progress. The core serves each of a request's `n` outputs as a request of its own, with a number."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = eos_token_ids
        self._numbers = itertools.count()
        self._requests: dict[str, _LiveRequest] = {}
        self._outputs: dict[int, _LiveOutput] = {}

    def __len__(self) -> int:
        """Requests that have not finished."""
        return len(self._requests)

    @property
    def request_ids(self) -> list[str]:
        """Their ids."""
        return list(self._requests)

    def add(self, request_id: str, checked: CheckedInput) -> list[tuple[int, str, SamplingParams]]:
        """Begin a request; the number, id and parameters of each output, for the core.

        Raises:
            RequestRefused: the id is in use.
        """
        if request_id in self._requests:
            raise RequestRefused(f"request {request_id!r} is already being served; ids of live requests must differ")
        request = self._requests[request_id] = _LiveRequest(request_id, checked)
        params = checked.params
        children = []
        for index in range(params.n):
            number = next(self._numbers)
            detokenizer = None
            if self._tokenizer is not None:
                detokenizer = Detokenizer(self._tokenizer, checked.prompt_token_ids, params)
            request.outputs[number] = self._outputs[number] = _LiveOutput(request, index, detokenizer)
            if params.n == 1:
                children.append((number, request_id, params))
            else:
                children.append((number, f"{request_id}/{index}", params.child(index)))
        return children

    def apply(self, updates: Iterable[Update]) -> tuple[list[RequestOutput], list[int]]:
        """Take what steps brought.

        Returns:
            What each request gained, and the numbers of outputs that the core must stop, since the front has ended
            them.
        """
        parts: dict[str, RequestOutput] = {}
        stopped: list[int] = []
        for update in updates:
            output = self._outputs.get(update.number)
            if output is None:
                continue  # aborted since
            if update.error is not None:
                part = self._refuse(output.request, update, stopped)
            else:
                part = self._extend(output, update, stopped)
            earlier = parts.setdefault(part.request_id, part)
            if earlier is not part:
                earlier.add(part)
        return list(parts.values()), stopped

    def abort(self, request_id: str) -> tuple[RequestOutput | None, list[int]]:
        """End a request where it stands: its last part, and the numbers that the core must stop."""
        request = self._requests.get(request_id)
        if request is None:
            return None, []
        numbers, last = list(request.outputs), request.part(finished=True)
        for number in numbers:
            output = request.outputs[number]
            rest = output.detokenizer.add((), finished=True).text if output.detokenizer else ""
            last.outputs.append(CompletionOutput(output.index, rest, finish_reason="abort"))
            self._end(number)
        return last, numbers

    def clear(self) -> None:
        """Forget all, since the core is dead."""
        self._requests.clear()
        self._outputs.clear()

    def _extend(self, output: _LiveOutput, update: Update, stopped: list[int]) -> RequestOutput:
        token_ids, logprobs = update.new_token_ids, update.logprobs
        reason, text = update.finish_reason, ""
        stop_reason: str | int | None = update.stop_token
        if stop_reason in self._eos_token_ids and not output.request.checked.params.ignore_eos:
            stop_reason = None
        if output.detokenizer is not None:
            piece = output.detokenizer.add(token_ids, finished=reason is not None, stop_token=update.stop_token)
            text = piece.text
            if piece.stop is not None:
                if reason is None:
                    stopped.append(update.number)
                reason, stop_reason = "stop", piece.stop
                token_ids = token_ids[: piece.num_tokens]
                logprobs = logprobs and logprobs[: piece.num_tokens]
        if reason is not None:
            self._end(update.number)
        return output.request.part(
            outputs=[CompletionOutput(output.index, text, token_ids, reason, stop_reason, logprobs)],
            finished=not output.request.outputs,
            num_cached_tokens=update.num_cached_tokens if output.index == 0 else 0,
            prompt_logprobs=update.prompt_logprobs,
        )

    def _refuse(self, request: _LiveRequest, update: Update, stopped: list[int]) -> RequestOutput:
        stopped += [number for number in request.outputs if number != update.number]
        indexes = [output.index for output in request.outputs.values()]
        for number in list(request.outputs):
            self._end(number)
        outputs = [CompletionOutput(index, finish_reason="error") for index in indexes]
        return request.part(outputs=outputs, finished=True, error=update.error)

    def _end(self, number: int) -> None:
        request = self._outputs.pop(number).request
        del request.outputs[number]
        if not request.outputs:
            del self._requests[request.request_id]
