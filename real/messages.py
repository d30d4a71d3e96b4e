"""What passes between the front and the engine core, in msgpack.

A request is known to the scheduler, and in records, by its id; in messages it goes by a number that the front never
uses twice, so that a late output of an aborted request is not taken for one of a new request of the same id.
"""

from __future__ import annotations

import msgspec

from real.results import TokenLogprobs
from real.sampling_params import SamplingParams
from schedulers import SLO, RequestRecord, StepRecord
from schedulers.decisions import StepDecisions

# -- to the core -------------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message: it shows that the front is connected."""


class AddRequest(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A prompt, tokenized, with all that a scheduler may know of it (see `schedulers.Request`)."""

    number: int
    request_id: str
    arrival_time: float
    prompt_token_ids: list[int]
    sampling: SamplingParams
    eos_token_id: int | None = None
    #: Besides those of `sampling`.
    stop_token_ids: tuple[int, ...] = ()
    priority: int = 0
    client_id: str = ""
    session_id: str = ""
    slo: SLO | None = None
    predicted_output_tokens: float | None = None
    cache_salt: str = ""


class AbortRequests(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Cancel these requests, by number; those that have ended are passed over."""

    numbers: list[int]


class AskReport(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Send a `Report`."""


class Shutdown(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """End the core."""


ToCore = Hello | AddRequest | AbortRequests | AskReport | Shutdown

# -- to the front ------------------------------------------------------------------------------------------------------


class Connected(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to `Hello`: from now on no socket needs its file."""


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The model is loaded, and the core takes requests.

    Attributes:
        vocab_size: token ids go from 0 to one less.
        eos_token_ids: any of them ends an output.
        max_model_len: most tokens of a request, as the model and the config have it.
        max_request_tokens: the same, as the KV cache has it too.
        num_kv_blocks: KV blocks in the cache.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    max_request_tokens: int
    num_kv_blocks: int


class Update(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What a step brought for one request."""

    number: int
    new_token_ids: list[int] = []
    #: "stop" or "length" with the last tokens; "error" when it was refused.
    finish_reason: str | None = None
    #: The EOS or stop token that ended the output.
    stop_token: int | None = None
    error: str | None = None
    #: Prompt tokens found in the prefix cache; told with the first tokens.
    num_cached_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


class Updates(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All updates of a step."""

    updates: list[Update]


class Report(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Where the core stands, and what it kept since the last report (with `keep_records`, `keep_decisions`)."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_steps: int
    num_tokens: int
    step_records: list[StepRecord]
    request_records: list[RequestRecord]
    decisions: list[StepDecisions]


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The core's last words.

    Attributes:
        message: what happened.
        by_input: it is the user's to mend (an InputError).
    """

    message: str
    by_input: bool


ToFront = Connected | Ready | Updates | Report | Failed
