"""Text to token ids, through the tokenizer that lies beside the model."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from real.cache_folder import cache_folder
from real.kinds import is_text
from schedulers import InputError

#: A chat: messages with "role" and "content".
Messages = Sequence[Mapping[str, Any]]


class Tokenizer:
    """A model's tokenizer and chat template.

    Attributes:
        fast: the same in the library `tokenizers`, which can decode a stream.
    """

    def __init__(self, source: str) -> None:
        """Read it from a Hugging Face folder, a GGUF file, or a folder with one GGUF file.

        Raises:
            InputError: there is none, or it is damaged.
        """
        from transformers import AutoTokenizer

        path = Path(source)
        files = [path] if path.is_file() else sorted(path.glob("*.gguf"))
        try:
            if files and not (path / "tokenizer.json").exists():
                self._tokenizer = _from_gguf(files[0])
            else:
                self._tokenizer = AutoTokenizer.from_pretrained(path)
        except Exception as error:  # transformers raises whatever its parsers do
            raise InputError(
                f"{source}: no tokenizer could be read from it ({_first_line(error)}); give tokenizer=PATH, "
                "or skip_tokenizer=True for prompts of token ids"
            ) from error
        if not self._tokenizer.is_fast:
            raise InputError(
                f"{source}: its tokenizer has no fast form (tokenizer.json), which decoding a stream needs"
            )
        self.fast: FastTokenizer = self._tokenizer.backend_tokenizer

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with those that the model wants in front (BOS), unless `special_tokens` is False."""
        return list(self.fast.encode(text, add_special_tokens=special_tokens).ids)

    def encode_chat(self, messages: Messages | Any) -> list[int]:
        """Token ids of a chat, written out by `chat`. Raises InputError as that does, and for text that is none."""
        text = self.chat(messages)
        if not is_text(text):
            raise InputError("the chat is not valid text: it has lone surrogates")
        return self.encode(text, special_tokens=False)  # the template writes those

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of these tokens."""
        return str(self.fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def chat(self, messages: Messages | Any) -> str:
        """A chat as the model's template writes it, up to where the assistant speaks.

        Raises:
            InputError: there is no template, or it refuses these messages.
        """
        if not self._tokenizer.chat_template:
            raise InputError("this model has no chat template; use generate instead of chat")
        if not messages or not all(isinstance(message, Mapping) and "role" in message for message in messages):
            raise InputError(
                'a chat must be a list of messages such as {"role": "user", "content": "..."}, at least one of them'
            )
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template is a program, and raises what it likes
            raise InputError(f"the model's chat template refuses these messages: {_first_line(error)}") from error


def _from_gguf(file: Path) -> Any:
    """The tokenizer in a GGUF file.

    Reading it takes transformers 6 seconds for 49,152 tokens, so it is kept in Hugging Face's format, from which it
    takes half a second, for as long as the file and the version of transformers stay the same.
    """
    import transformers

    state = file.stat()
    name = f"{transformers.__version__} {file.resolve()} {state.st_size} {state.st_mtime_ns}"
    kept = cache_folder() / f"tokenizer-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    if kept.exists():
        try:
            return transformers.AutoTokenizer.from_pretrained(kept)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it can be made again
            shutil.rmtree(kept, ignore_errors=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    _keep(tokenizer, kept)
    return tokenizer


def _keep(tokenizer: Any, folder: Path) -> None:
    """Save it where it will be looked for, whole or not at all; a folder that cannot be written is no obstacle."""
    with contextlib.suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            tokenizer.save_pretrained(made)
            Path(made).rename(folder)  # fails if another process was quicker
            Path(made).mkdir()  # for its own removal


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0].rstrip(' :')}"
