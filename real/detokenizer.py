"""Text of an output as it grows: token by token, never a broken character, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers.decoders import DecodeStream

from real.sampling_params import SamplingParams
from real.tokenizer import Tokenizer

#: Prompt tokens that decoding looks at, so that a space or character begun in the prompt goes on as it should.
_CONTEXT = 6


class Piece(NamedTuple):
    """What new tokens add to an output.

    Attributes:
        text: new text that nothing can take back.
        num_tokens: how many of the tokens belong to the output; less than given only if a stop string ended it.
        stop: the stop string that ended it.
    """

    text: str
    num_tokens: int
    stop: str | None = None


class Detokenizer:
    """Turns the tokens of one output into text.

    A character whose bytes are spread over tokens comes when it is complete. While stop strings are asked for, the end
    of the text that could be the beginning of one is held back. The text is that of `tokenizers` for the whole
    sequence.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer.fast
        self._skip_special_tokens = params.skip_special_tokens
        self._stop = tuple(params.stop)
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._num_tokens = 0
        self._held = ""
        self._max_held = max(map(len, self._stop), default=1) - 1
        self._stream = DecodeStream(list(prompt_token_ids[-_CONTEXT:]), self._skip_special_tokens)

    def add(self, token_ids: Sequence[int], *, finished: bool, stop_token: int | None = None) -> Piece:
        """Take the next tokens of the output.

        Args:
            finished: they are the last, and what was held back is let go.
            stop_token: the EOS or stop token that ended the output, the last of `token_ids`; it adds no text unless
                `include_stop_str_in_output`.
        """
        num_shown = len(token_ids) - (stop_token is not None and not self._include_stop)
        text = self._held
        for position, token_id in enumerate(token_ids[:num_shown], 1):
            self._num_tokens += 1
            new = self._step(token_id)
            if not new:
                continue
            num_old = len(text)
            text += new
            if self._stop and self._num_tokens > self._min_tokens:
                found = self._find_stop(text, num_old)
                if found is not None:
                    start, stop = found
                    self._held = ""
                    return Piece(text[: start + len(stop) if self._include_stop else start], position, stop)
        num_held = 0 if finished else min(self._max_held, len(text))
        self._held = text[len(text) - num_held :]
        return Piece(text[: len(text) - num_held], len(token_ids))

    def _step(self, token_id: int) -> str | None:
        try:
            return self._stream.step(self._tokenizer, token_id)
        except Exception as error:
            # Bytes that are no text can make the decoder contradict itself; it then starts afresh, as text goes on.
            if "Invalid prefix" not in str(error):
                raise
            self._stream = DecodeStream([], self._skip_special_tokens)
            return self._stream.step(self._tokenizer, token_id)

    def _find_stop(self, text: str, num_old: int) -> tuple[int, str] | None:
        """The first stop string in `text` that ends after its first `num_old` characters: where, and which."""
        found = [(text.find(stop, max(num_old - len(stop) + 1, 0)), stop) for stop in self._stop]
        return min((hit for hit in found if hit[0] >= 0), default=None)
