"""The simulator's model: it knows how long each output really is, and ends it with EOS."""

from __future__ import annotations

from schedulers import InputError, SchedulerOutput, StepResult

#: Token ids that stand for "some token" and "end of sequence"; nothing reads them but stop conditions.
TOKEN, EOS = 1, 0

_TOKEN, _LAST = (TOKEN,), (EOS,)


def check_length(request_id: str, num_output_tokens: int) -> None:
    """Refuse an output without tokens.

    Raises:
        InputError: naming the request.
    """
    if num_output_tokens < 1:
        raise InputError(f"request {request_id!r}: an output of {num_output_tokens} tokens; it must have at least 1")


class TokenSource:
    """Samples a token for each request that is due one; the last of its true length is EOS.

    Requests must name `EOS` as their `eos_token_id`. The scheduler learns a length only when EOS arrives, as it does
    from a real model.
    """

    def __init__(self) -> None:
        """Start without any request."""
        self._num_left: dict[str, int] = {}

    def expect(self, request_id: str, num_output_tokens: int) -> None:
        """Say how many tokens (EOS included) the output of `request_id` has."""
        check_length(request_id, num_output_tokens)
        self._num_left[request_id] = num_output_tokens

    def forget(self, request_id: str) -> None:
        """Drop a request that ended."""
        self._num_left.pop(request_id, None)

    def sample(self, output: SchedulerOutput) -> StepResult:
        """Tokens for every request in `output.sampled_ids`."""
        num_left = self._num_left
        sampled = {}
        for request_id in output.sampled_ids:
            left = num_left[request_id] = num_left[request_id] - 1
            sampled[request_id] = _TOKEN if left > 0 else _LAST
        return StepResult(sampled)
