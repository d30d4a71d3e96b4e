"""How the tokens of a request are chosen: what a client may ask, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from real.kinds import is_number, is_text, is_whole
from schedulers.errors import InputError

#: Names of the fields that hold sequences; they are kept as tuples.
_SEQUENCES = ("stop", "stop_token_ids", "bad_words", "bad_words_token_ids")
_FLAGS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
#: No number of tokens is larger, and no request has more outputs.
_MOST, _MOST_OUTPUTS = (1 << 31) - 1, 1 << 14
#: Beyond this, temperature and repetition penalty would leave the range of a float32.
_EXTREME = 1e6


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The parameters of one request; names and defaults are vLLM's.

    Rules apply in vLLM's order: `allowed_token_ids`, bad words, `min_tokens`, `logit_bias`, penalties, `temperature`,
    `min_p`, `top_k`, `top_p`. Log-probabilities are those of the model, before any rule.

    Raises:
        InputError: a value is impossible, or two contradict each other; the message names them.
    """

    #: Outputs per prompt; each is sampled on its own.
    n: int = 1
    #: Most tokens to produce; None: as many as model and cache allow.
    max_tokens: int | None = 16
    #: Neither EOS nor a stop token is sampled before the output has this many tokens.
    min_tokens: int = 0
    #: Divides the logits. 0 is greedy: always the likeliest token.
    temperature: float = 1.0
    #: Sample among the k likeliest tokens; 0: among all.
    top_k: int = 0
    #: Sample among the likeliest tokens that together have this probability.
    top_p: float = 1.0
    #: Sample among tokens at least this many times as likely as the likeliest.
    min_p: float = 0.0
    #: Subtracted from the logit of every token that the output has.
    presence_penalty: float = 0.0
    #: Subtracted from the logit of a token each time that the output has it.
    frequency_penalty: float = 0.0
    #: Logits of tokens in prompt or output are divided by this where positive, multiplied where negative
    #: (Keskar et al., "CTRL", 2019); 1: no change.
    repetition_penalty: float = 1.0
    #: Added to the logits of these token ids, -100 to 100.
    logit_bias: Mapping[int, float] | None = None
    #: Only these tokens can be sampled.
    allowed_token_ids: Sequence[int] | None = None
    #: Words that must not appear in the output; the front turns them into `bad_words_token_ids`.
    bad_words: Sequence[str] = ()
    #: Token sequences that must not appear in the output.
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    #: Same seed, prompt and parameters: same tokens, whatever else is in the batch. None: the engine picks one.
    seed: int | None = None
    #: Strings that end the output; the front finds them in the text.
    stop: str | Sequence[str] = ()
    #: Tokens that end the output, besides EOS.
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    #: EOS is a token like any other.
    ignore_eos: bool = False
    #: Log-probabilities of this many likeliest tokens and of the sampled one, for each output token; None: none at all.
    logprobs: int | None = None
    #: The same for each prompt token but the first.
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    #: The hidden length of a replayed workload: EOS comes as exactly this token of the output and no sooner (nor does a
    #: stop token), whatever the model would say, so that the scheduler learns the length only when it ends.
    forced_length: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self._set("stop", (self.stop,))
        for name in _SEQUENCES:
            self._set(name, _as_tuple(name, getattr(self, name)))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _as_tuple("allowed_token_ids", self.allowed_token_ids))
        words = tuple(_as_tuple("each of bad_words_token_ids", sequence) for sequence in self.bad_words_token_ids)
        self._set("bad_words_token_ids", words)
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise InputError(f"logit_bias={self.logit_bias!r}: it must map token ids to numbers")

        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}={getattr(self, name)!r}: it must be True or False")
        self._whole("n", 1, _MOST_OUTPUTS)
        self._whole("max_tokens", 1, optional=True)
        self._whole("min_tokens", 0)
        self._whole("top_k", -1)
        self._whole("logprobs", 0, optional=True)
        self._whole("prompt_logprobs", 0, optional=True)
        self._whole("forced_length", 1, optional=True)
        self._whole("seed", -(1 << 63), (1 << 64) - 1, optional=True)
        self._number("temperature", 0, _EXTREME)
        self._number("top_p", 0, 1, above=True)
        self._number("min_p", 0, 1)
        self._number("presence_penalty", -2, 2)
        self._number("frequency_penalty", -2, 2)
        self._number("repetition_penalty", 1 / _EXTREME, _EXTREME)
        self._check_tokens()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InputError(f"min_tokens={self.min_tokens} with max_tokens={self.max_tokens}: it must not be larger")
        if self.forced_length is not None:
            if self.ignore_eos:
                raise InputError("forced_length ends the output with EOS, which ignore_eos=True ignores: give only one")
            if self.min_tokens > self.forced_length:
                raise InputError(
                    f"min_tokens={self.min_tokens} with forced_length={self.forced_length}: it must not be larger"
                )

    @property
    def is_greedy(self) -> bool:
        """Always the likeliest token; nothing is drawn."""
        return self.temperature < 1e-5

    def child(self, index: int) -> SamplingParams:
        """The parameters of output number `index` of `n`, with a seed of its own if this one has a seed."""
        seed = self.seed
        if seed is not None and index:
            digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
            seed = int.from_bytes(digest, "little")
        return msgspec.structs.replace(self, n=1, seed=seed)

    def tokenized(self, encode: Callable[[str], Sequence[int]]) -> SamplingParams:
        """With `bad_words` as token sequences, both at the start of a text and after a space.

        Args:
            encode: text to token ids, without special tokens.
        """
        words = [form for word in self.bad_words for form in (word, " " + word.lstrip())]
        sequences = dict.fromkeys([*self.bad_words_token_ids, *(tuple(encode(word)) for word in words)])
        return msgspec.structs.replace(self, bad_words=(), bad_words_token_ids=tuple(filter(None, sequences)))

    # -- checks -------------------------------------------------------------------------------------------------------

    def _set(self, name: str, value: object) -> None:
        msgspec.structs.force_setattr(self, name, value)

    def _whole(self, name: str, least: int, most: int = _MOST, *, optional: bool = False) -> None:
        value = getattr(self, name)
        if optional and value is None:
            return
        if not is_whole(value, least, most):
            raise InputError(f"{name}={value!r}: it must be a whole number from {least} to {most}")

    def _number(self, name: str, least: float, most: float, *, above: bool = False) -> None:
        value = getattr(self, name)
        if not is_number(value) or not (least < value if above else least <= value) or value > most:
            low = f"above {least:g}" if above else f"of at least {least:g}"
            raise InputError(f"{name}={value!r}: it must be a number {low} and at most {most:g}")
        self._set(name, float(value))

    def _check_tokens(self) -> None:
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                if not is_text(text) or not text:
                    raise InputError(f"{name} has {text!r}: it must be valid strings of at least one character")
        for sequence in self.bad_words_token_ids:
            if not sequence:
                raise InputError("bad_words_token_ids has an empty sequence: each needs at least one token id")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InputError("allowed_token_ids is empty: nothing could be sampled; it must name at least one token")
        for name, token_ids in _token_ids(self):
            for token_id in token_ids:
                if not is_whole(token_id, least=0):
                    raise InputError(f"{name} has {token_id!r}: token ids must be whole numbers of at least 0")
        for token_id, bias in (self.logit_bias or {}).items():
            if not is_number(bias) or not -100 <= bias <= 100:
                raise InputError(f"logit_bias of token {token_id} is {bias!r}: it must be a number from -100 to 100")
        if self.logit_bias is not None:
            self._set("logit_bias", {token_id: float(bias) for token_id, bias in self.logit_bias.items()})


def check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        InputError: it names `name` and the first such id.
    """
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InputError(f"{name} has token id {wrong}: the model's ids go from 0 to {vocab_size - 1}")


def check_for_model(params: SamplingParams, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
    """Refuse what this model cannot do: unknown token ids, and rules that could leave no token to sample.

    Raises:
        InputError: it names the parameter and what would be right.
    """
    for name, token_ids in _token_ids(params):
        check_token_ids(name, token_ids, vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        if (getattr(params, name) or 0) > vocab_size:
            raise InputError(f"{name}={getattr(params, name)}: the model has {vocab_size} tokens")
    eos = set() if params.ignore_eos else set(eos_token_ids)
    if params.forced_length is not None and not eos:
        raise InputError("forced_length ends the output with EOS, which this model does not have")
    never = {sequence[-1] for sequence in params.bad_words_token_ids}
    if params.min_tokens > 0 or params.forced_length is not None:
        never |= eos.union(params.stop_token_ids)
    allowed = params.allowed_token_ids
    if len(never) >= vocab_size if allowed is None else never.issuperset(allowed):
        raise InputError(
            "allowed_token_ids, bad words, stop tokens and min_tokens can leave no token to sample: allow a token that "
            "neither ends a bad word nor stops the output"
        )


def _token_ids(params: SamplingParams) -> list[tuple[str, Sequence[int]]]:
    """Every parameter that names token ids, with all that it names."""
    return [
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("logit_bias", tuple(params.logit_bias or ())),
        ("bad_words_token_ids", [token_id for sequence in params.bad_words_token_ids for token_id in sequence]),
    ]


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name}={value!r}: it must be a list")
    return tuple(value)
