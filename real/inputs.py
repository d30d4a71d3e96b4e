"""What a client asks, checked and turned into what the core understands, before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from real.kinds import is_number, is_text, is_whole
from real.messages import Ready
from real.sampling_params import SamplingParams, check_for_model, check_token_ids
from real.tokenizer import Tokenizer
from schedulers import SLO, InputError, RequestRefused

#: Text, or token ids.
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """A prompt and its parameters, which this model can serve."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """What a client may tell of a request besides prompt and parameters; policies read it (see `schedulers.Request`).

    Attributes:
        arrival_time: on the clock of `time.perf_counter`, seconds; None: when it is sent.
        priority: lower is more urgent.
        cache_salt: requests share cached blocks only with requests of the same salt.

    Raises:
        InputError: a value is not of its kind; the message names it.
    """

    arrival_time: float | None = None
    priority: int = 0
    client_id: str = ""
    session_id: str = ""
    slo: SLO | None = None
    predicted_output_tokens: float | None = None
    cache_salt: str = ""

    def __post_init__(self) -> None:
        for name in ("arrival_time", "predicted_output_tokens"):
            value = getattr(self, name)
            if value is not None and not is_number(value):
                raise InputError(f"{name}={value!r}: it must be a number, or None")
            object.__setattr__(self, name, None if value is None else float(value))
        if not is_whole(self.priority):
            raise InputError(f"priority={self.priority!r}: it must be a whole number, of 64 bits at most")
        for name in ("client_id", "session_id", "cache_salt"):
            if not is_text(getattr(self, name)):
                raise InputError(f"{name}={getattr(self, name)!r}: it must be a valid string")
        if self.slo is not None and not isinstance(self.slo, SLO):
            raise InputError(f"slo={self.slo!r}: it must be a schedulers.SLO, or None")

    @classmethod
    def of(cls, **told: Any) -> Self:
        """From arguments by name. Raises InputError also for a name that there is not."""
        known = [field.name for field in fields(cls)]
        for name in told:
            if name not in known:
                raise InputError(f"unknown argument {name!r} of a request; there are {', '.join(known)}")
        return cls(**told)


class InputChecker:
    """Tokenizes, and refuses what this model and cache can never serve."""

    def __init__(self, ready: Ready, tokenizer: Tokenizer | None) -> None:
        self._ready = ready
        self._tokenizer = tokenizer

    def check(self, name: str, prompt: Prompt, params: SamplingParams) -> CheckedInput:
        """Check one request.

        Args:
            name: what messages call it.

        Raises:
            InputError: the prompt is empty, neither text nor token ids, has an id that the model has not, or the
                parameters are impossible for the model.
            RequestRefused: prompt and output are too long together.
        """
        if not isinstance(params, SamplingParams):
            raise InputError(f"{name}: sampling parameters must be a SamplingParams, not {type(params).__name__}")
        tokenizer, ready = self._tokenizer, self._ready
        text = prompt if isinstance(prompt, str) else None
        token_ids = _token_ids(name, prompt) if text is None else self._encode(name, text)
        # A text's too: the tokenizer may be another model's.
        check_token_ids(f"{name}: the prompt", token_ids, ready.vocab_size)
        if not token_ids:
            raise InputError(f"{name}: the prompt is empty; it needs at least one token")
        if tokenizer is not None:
            params = params.tokenized(lambda word: tokenizer.encode(word, special_tokens=False))
        elif params.stop or params.bad_words:
            raise InputError(f"{name}: stop strings and bad words need a tokenizer; the engine has skip_tokenizer=True")
        check_for_model(params, ready.vocab_size, ready.eos_token_ids)
        limit, num_wanted = ready.max_request_tokens, params.max_tokens or 1
        if len(token_ids) + num_wanted > limit:
            whose = "the model takes" if limit == ready.max_model_len else "the KV cache holds"
            raise RequestRefused(
                f"{name}: {len(token_ids)} prompt tokens + {num_wanted} output tokens are more than the {limit} "
                f"that {whose}"
            )
        return CheckedInput(text, token_ids, params)

    def _encode(self, name: str, text: str) -> list[int]:
        if self._tokenizer is None:
            raise InputError(f"{name}: the engine has skip_tokenizer=True; give the prompt as token ids")
        if not is_text(text):
            raise InputError(f"{name}: the prompt is not valid text: it has lone surrogates")
        return self._tokenizer.encode(text)


def _token_ids(name: str, prompt: object) -> list[int]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InputError(f"{name}: the prompt is {type(prompt).__name__}; it must be text or a list of token ids")
    token_ids = list(prompt)
    for token_id in token_ids:
        if not is_whole(token_id):
            raise InputError(f"{name}: the prompt has {token_id!r} among its token ids; they must be whole numbers")
    return token_ids
