"""How long a request's output will be, as far as a policy can know."""

from __future__ import annotations

from typing import Protocol

from schedulers.errors import InputError, RequestRefused
from schedulers.request import FinishReason, Request


class Predictor(Protocol):
    """Tells lengths to a policy; each policy has its own."""

    def predict(self, request: Request) -> float:
        """Output tokens expected of a live request in all; the same each time it is asked.

        Raises:
            RequestRefused: nothing can be said.
        """

    def ended(self, request: Request) -> None:
        """Learn from a request that has finished or was aborted."""


class Given:
    """What came with the request, from whoever predicted it."""

    def predict(self, request: Request) -> float:
        """Its `predicted_output_tokens`."""
        if request.predicted_output_tokens is None:
            raise RequestRefused(
                f"request {request.request_id!r} has no predicted_output_tokens, by which this policy orders: send "
                "some (in a run: predictor=oracle, noisy or constant), or use scheduler.predictor=client_mean"
            )
        return request.predicted_output_tokens

    def ended(self, request: Request) -> None:
        """There is nothing to learn."""


class ClientMean:
    """The mean output of the client's finished requests; before its first, of everybody's; before the first, 0.

    What is said of a request when it is first asked for, at its arrival, stands until its end.
    """

    def __init__(self) -> None:
        self._predicted: dict[str, float] = {}
        #: By client: finished requests and their output tokens. None stands for all clients.
        self._seen: dict[str | None, tuple[int, int]] = {}

    def predict(self, request: Request) -> float:
        """The mean as it was when `request` came."""
        predicted = self._predicted.get(request.request_id)
        if predicted is None:
            count, total = self._seen.get(request.client_id) or self._seen.get(None) or (1, 0)
            predicted = self._predicted[request.request_id] = total / count
        return predicted

    def ended(self, request: Request) -> None:
        """Count its output, unless it was cut off."""
        self._predicted.pop(request.request_id, None)
        if request.finish_reason is not FinishReason.ABORT:
            for whose in (request.client_id, None):
                count, total = self._seen.get(whose, (0, 0))
                self._seen[whose] = (count + 1, total + request.num_output_tokens)


PREDICTORS: dict[str, type[Given | ClientMean]] = {"given": Given, "client_mean": ClientMean}


def make_predictor(name: str) -> Predictor:
    """A fresh predictor of that name.

    Raises:
        InputError: there is none.
    """
    if name not in list(PREDICTORS):  # a config may say what cannot be hashed
        raise InputError(f"predictor={name}: it must be one of {', '.join(PREDICTORS)}")
    return PREDICTORS[name]()
