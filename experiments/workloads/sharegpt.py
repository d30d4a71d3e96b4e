"""Conversations that people had with ChatGPT and shared: how long their turns are, and not when they were sent."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.workloads import checks
from experiments.workloads.clients import RequestClass
from experiments.workloads.files import read_text
from experiments.workloads.seeds import Streams
from experiments.workloads.sessions import Conversations, Turns
from schedulers.errors import InputError

#: Who speaks, as published files write it. What a system says is the beginning of what the user says next.
_USERS = ("human", "user", "system")
_MODELS = ("gpt", "assistant", "chatgpt", "bing", "bard")


@dataclass(frozen=True, kw_only=True)
class ShareGPT(Conversations):
    """A JSON file, plain or gzip: an array of objects with `conversations`, lists of messages with `from` and `value`.

    Each conversation, in the order of the file, is a session. Messages of one side that follow each other are one;
    what comes before the user's first message, or after the last answer, is left out, and so are conversations in which
    nothing is answered. The first `num_sessions` of the others are taken; null: all.

    Lengths are counted by the `tokenizer.json` that `tokenizer` names (the file, or its folder). Without one they are
    estimated: `tokens_per_word` for each word between spaces, rounded up; OpenAI's rule of thumb for English is 100
    tokens for 75 words.
    """

    path: str
    num_sessions: int | None = None
    tokenizer: str | None = None
    tokens_per_word: float = 4 / 3

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.text("workload.path", self.path)
        if self.num_sessions is not None:
            checks.count("workload.num_sessions", self.num_sessions)
        if self.tokenizer is not None:
            checks.text("workload.tokenizer", self.tokenizer)
        checks.positive("workload.tokens_per_word", self.tokens_per_word)

    def _check_class(self, key: str, kind: object) -> None:
        super()._check_class(key, kind)
        if isinstance(kind, RequestClass) and (kind.prompt or kind.output):
            raise InputError(f"{key}: the lengths are those of the conversations; leave prompt and output out")

    def converse(self, drawn: Streams) -> tuple[list[Turns], NDArray[np.int64]]:
        """Read them; only their classes are drawn."""
        sessions = list(islice(self._sessions(), self.num_sessions))
        if not sessions:
            raise InputError(f"{self.path}: there is no conversation in which anything is answered")
        if self.num_sessions is not None and len(sessions) < self.num_sessions:
            raise InputError(
                f"workload.num_sessions={self.num_sessions}: {self.path} has {len(sessions)} conversations in which "
                "anything is answered; ask for fewer, or null for all"
            )
        return sessions, self.draw_kinds(len(sessions), drawn.classes)

    def _sessions(self) -> Iterator[Turns]:
        count = self._counter()
        try:
            items = json.loads(read_text(self.path))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.path}: this is not JSON ({error})") from None
        if not isinstance(items, list):
            raise InputError(f"{self.path}: this is not a JSON array of conversations")
        for number, item in enumerate(items, start=1):
            turns = [(count(asked), count(answer)) for asked, answer in _exchanges(self.path, number, item)]
            if turns:
                yield turns

    def _counter(self) -> Callable[[str], int]:
        """Says how many tokens a text has, at least 1."""
        if self.tokenizer is None:
            return lambda text: max(1, math.ceil(len(text.split()) * self.tokens_per_word))
        file = Path(self.tokenizer).expanduser()
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            raise InputError(
                f"workload.tokenizer={self.tokenizer} needs tokenizers, which is not installed: pip install "
                "tokenizers, or give null to estimate lengths from words"
            ) from None
        try:
            encode = Tokenizer.from_file(str(file)).encode
        except Exception as error:  # noqa: BLE001 - tokenizers raises nothing more special
            raise InputError(f"workload.tokenizer={self.tokenizer}: {file} cannot be read ({error})") from None
        return lambda text: max(1, len(encode(text, add_special_tokens=False).ids))

    def describe(self) -> str:
        """For example: ShareGPT.json, first 500 sessions at 2/s, Poisson arrivals; think 10 s."""
        first = "all" if self.num_sessions is None else f"first {self.num_sessions:,}"
        prefixes = "" if self.prefixes is None else f"; {self.prefixes}"
        how = f"{self.tokens_per_word:.3g} tokens a word" if self.tokenizer is None else Path(self.tokenizer).name
        return (
            f"{Path(self.path).name}, {first} sessions at {self.rate:g}/s, {self.arrivals}; think {self.think_s:g} s; "
            f"{how}{prefixes}{self.describe_classes()}"
        )


def _exchanges(path: str, number: int, item: Any) -> Iterator[tuple[str, str]]:
    """What was asked and what was answered, turn by turn."""
    where = f"{path}, conversation {number}"
    messages = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(messages, list):
        raise InputError(f"{where}: it must be an object with conversations, a list of messages")
    asked, answer = "", ""
    for place, message in enumerate(messages, start=1):
        who, text = (message.get("from"), message.get("value")) if isinstance(message, dict) else (None, None)
        if not isinstance(text, str) or who not in _USERS + _MODELS:
            raise InputError(
                f"{where}, message {place}: it must have a text as value, and as from one of "
                f"{', '.join(_USERS + _MODELS)}; from is {who!r}"
            )
        if who in _MODELS:
            answer += text if asked else ""
        elif answer.strip():
            yield asked, answer
            asked, answer = text, ""
        else:
            asked += text
    if answer.strip():
        yield asked, answer
