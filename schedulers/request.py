"""A request: what its client asked for, what policies may know of it, and how far it has come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from schedulers.errors import InputError, RequestRefused


class Status(Enum):
    """Where a request stands. Only RUNNING requests own KV blocks."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended. STOP: EOS or a stop token; LENGTH: a limit; ABORT: it was cancelled."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SLO:
    """Latency targets in seconds; None where there is no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            target = getattr(self, name)
            is_number = isinstance(target, int | float) and not isinstance(target, bool)
            if target is not None and not (is_number and 0 < target < float("inf")):
                raise InputError(f"slo.{name}={target!r}: it must be a number of seconds above 0, or null for none")


class Request:
    """One prompt on its way through a scheduler.

    The first group of attributes is given and never changes; the second is progress, written by the mechanism in
    `schedulers.scheduler` alone. There are no phases: a request has `num_tokens` (prompt and output so far) and
    `num_computed_tokens`, and each step lets the second catch up with the first.

    How long the output will be is not here: the world knows it (the model, or the simulator's token source).

    In a simulation a prompt may be a mere number of tokens; then `prompt_block_hashes` may name the content of its
    first full blocks, in order, so that equal prefixes hit the prefix cache. `content_id` names all blocks after those,
    each with its index, and the output's among them, however long it gets: so the next turn of a conversation, which
    has the same id, finds what was answered in the last one. Content without a name is taken to be unlike any other.
    """

    __slots__ = (
        "arrival_time",
        "block_capacity",
        "block_hashes",
        "block_ids",
        "cache_salt",
        "client_id",
        "content_id",
        "eos_token_id",
        "finish_reason",
        "finish_time",
        "first_scheduled_time",
        "ignore_eos",
        "in_step",
        "max_tokens",
        "min_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_full_blocks",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recached_tokens",
        "num_tokens",
        "output_token_ids",
        "predicted_output_tokens",
        "priority",
        "prompt_block_hashes",
        "prompt_logprobs",
        "prompt_token_ids",
        "request_id",
        "sampling",
        "session_id",
        "slo",
        "status",
        "stop_ids",
        "stop_token",
        "stop_token_ids",
        "token_limit",
        "token_times",
    )

    def __init__(
        self,
        request_id: str,
        arrival_time: float,
        prompt_token_ids: Sequence[int] | None = None,
        *,
        num_prompt_tokens: int | None = None,
        prompt_block_hashes: Sequence[Hashable] = (),
        content_id: str = "",
        max_tokens: int | None = None,
        min_tokens: int = 0,
        eos_token_id: int | None = None,
        ignore_eos: bool = False,
        stop_token_ids: Iterable[int] = (),
        priority: int = 0,
        client_id: str = "",
        session_id: str = "",
        slo: SLO | None = None,
        predicted_output_tokens: float | None = None,
        cache_salt: str = "",
        prompt_logprobs: bool = False,
        sampling: Any = None,
    ) -> None:
        """Take a request as its client made it.

        Args:
            request_id: unique among live requests.
            arrival_time: seconds, on the clock that `now` is read from.
            prompt_token_ids: the prompt; in a simulation `num_prompt_tokens` may be given instead.
            prompt_block_hashes: hashes of the prompt's first full blocks when there are no token ids.
            content_id: requests of the same id have the same tokens after those blocks, as far as both have any; "":
                nobody knows.
            max_tokens: most tokens to produce; None: as many as model and cache allow.
            min_tokens: EOS and stop tokens do not end the output before it has this many tokens.
            priority: lower is more urgent.
            predicted_output_tokens: what a length predictor said, if one was asked.
            cache_salt: requests share cached blocks only with requests of the same salt.
            prompt_logprobs: the whole prompt must be computed, so cached blocks are not read (but are filled).
            sampling: parameters that only the sampler understands; carried along untouched.

        Raises:
            RequestRefused: the arguments contradict each other; the message says which.
        """
        if prompt_token_ids is not None:
            if num_prompt_tokens not in (None, len(prompt_token_ids)):
                raise RequestRefused(
                    f"request {request_id!r}: num_prompt_tokens={num_prompt_tokens}, "
                    f"but the prompt has {len(prompt_token_ids)}"
                )
            num_prompt_tokens = len(prompt_token_ids)
        if not num_prompt_tokens or num_prompt_tokens < 0:
            raise RequestRefused(f"request {request_id!r}: the prompt is empty; it needs at least one token")
        if max_tokens is not None and max_tokens < 1:
            raise RequestRefused(f"request {request_id!r}: max_tokens={max_tokens}; it must be at least 1")
        if min_tokens < 0 or (max_tokens is not None and min_tokens > max_tokens):
            raise RequestRefused(
                f"request {request_id!r}: min_tokens={min_tokens}; it must be between 0 and max_tokens"
            )

        self.request_id = request_id
        self.arrival_time = arrival_time
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens: int = num_prompt_tokens
        self.prompt_block_hashes = prompt_block_hashes
        self.content_id = content_id
        self.max_tokens = max_tokens
        self.min_tokens = min_tokens
        self.eos_token_id = eos_token_id
        self.ignore_eos = ignore_eos
        self.stop_token_ids = frozenset(stop_token_ids)
        self.priority = priority
        self.client_id = client_id
        self.session_id = session_id
        self.slo = slo
        self.predicted_output_tokens = predicted_output_tokens
        self.cache_salt = cache_salt
        self.prompt_logprobs = prompt_logprobs
        self.sampling = sampling

        eos = () if ignore_eos or eos_token_id is None else (eos_token_id,)
        #: Tokens that end the output once it has min_tokens.
        self.stop_ids = self.stop_token_ids.union(eos)

        self.status = Status.WAITING
        self.num_computed_tokens = 0
        #: Prompt and output so far.
        self.num_tokens: int = num_prompt_tokens
        self.output_token_ids: list[int] = []
        #: When each output token was known, seconds.
        self.token_times: list[float] = []
        #: The block table: KV blocks owned, in the order of the tokens they hold.
        self.block_ids: list[int] = []
        #: Tokens that the owned blocks can hold.
        self.block_capacity = 0
        #: Hash chain over this request's full blocks, as far as it has been needed.
        self.block_hashes: list[Hashable] = []
        #: Leading blocks of the table that are full once the steps in progress are done; with prefix caching only.
        self.num_full_blocks = 0
        #: Prompt and output together never exceed this; set when the scheduler accepts the request.
        self.token_limit = 0
        #: The step that is computing this request now; 0 when none is.
        self.in_step = 0
        #: Tokens found in the prefix cache when first admitted.
        self.num_cached_tokens = 0
        #: Tokens found in the prefix cache when coming back from preemptions, in sum.
        self.num_recached_tokens = 0
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        self.finish_time: float | None = None
        self.finish_reason: FinishReason | None = None
        #: The EOS or stop token that ended the output, if one did.
        self.stop_token: int | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens produced so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Known tokens that are not computed yet: 1 for a request that decodes."""
        return self.num_tokens - self.num_computed_tokens

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id!r} {self.status.value} {self.num_computed_tokens}/{self.num_tokens} computed, "
            f"{self.num_output_tokens} produced>"
        )
