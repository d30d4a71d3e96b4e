"""Text grows token by token, without a broken character, up to a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from real.detokenizer import Detokenizer, Piece
from real.sampling_params import SamplingParams

#: A byte-level tokenizer of 256 tokens, one a byte: every character beyond ASCII is spread over several.
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


class Bytes:
    """What a detokenizer needs of a tokenizer."""

    def __init__(self) -> None:
        self.fast = FastTokenizer(models.BPE({letter: index for index, letter in enumerate(ALPHABET)}, []))
        self.fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.fast.decoder = decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        return list(self.fast.encode(text).ids)


BYTES = Bytes()


def detokenizer(prompt: str = "", **params: object) -> Detokenizer:
    return Detokenizer(BYTES, BYTES.encode(prompt), SamplingParams(max_tokens=1000, **params))  # type: ignore[arg-type]


def feed(target: Detokenizer, text: str) -> list[Piece]:
    """A token at a time, up to a stop; the last is told to be the last."""
    pieces: list[Piece] = []
    token_ids = BYTES.encode(text)
    for index, token_id in enumerate(token_ids):
        pieces.append(target.add([token_id], finished=index == len(token_ids) - 1))
        if pieces[-1].stop is not None:
            break
    return pieces


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.text(st.characters(codec="utf-8"), max_size=10))
def test_every_text_comes_out_whole_and_no_piece_has_a_broken_character(text: str, prompt: str) -> None:
    pieces = feed(detokenizer(prompt), text)
    assert "".join(piece.text for piece in pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece.text for piece in pieces)


def test_an_output_cut_within_a_character_ends_before_it() -> None:
    target = detokenizer()
    token_ids = BYTES.encode("ab😀")[:-1]
    assert target.add(token_ids, finished=True).text == "ab"


def test_a_character_begun_in_the_prompt_is_finished_by_the_output() -> None:
    whole = BYTES.encode("é")
    target = Detokenizer(BYTES, [*BYTES.encode("caf"), whole[0]], SamplingParams())  # type: ignore[arg-type]
    assert target.add([whole[1], *BYTES.encode("!")], finished=True).text.endswith("!")


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("stop", "text", "kept", "num_tokens"),
    [
        (["END"], "one END two", "one ", 7),
        (["END", "E"], "one END two", "one ", 5),
        (["zwei", "wo"], "one two", "one t", 7),
        (["e t", "ne two"], "one two", "on", 5),
        (["é!"], "café! no", "caf", 6),
        (["xx"], "nothing of it", "nothing of it", 13),
        (["of it, no"], "nothing of it", "nothing of it", 13),
    ],
)
def test_a_stop_string_is_found_across_any_borders_of_tokens_and_steps(
    stop: list[str], text: str, kept: str, num_tokens: int, size: int
) -> None:
    target = detokenizer(stop=stop)
    token_ids, out, count = BYTES.encode(text), "", 0
    for start in range(0, len(token_ids), size):
        part = token_ids[start : start + size]
        piece = target.add(part, finished=start + size >= len(token_ids))
        out += piece.text
        count += piece.num_tokens
        if piece.stop is not None:
            assert piece.stop in stop
            break
    assert (out, count) == (kept, num_tokens)


def test_what_could_become_a_stop_string_is_held_back_and_nothing_else() -> None:
    target = detokenizer(stop=["STOP"])
    shown = [target.add(BYTES.encode(letter), finished=False).text for letter in "abcdST"]
    assert "".join(shown) == "abc"
    assert target.add((), finished=True).text == "dST"


def test_a_stop_string_can_be_kept() -> None:
    pieces = feed(detokenizer(stop=["END"], include_stop_str_in_output=True), "one END two")
    assert "".join(piece.text for piece in pieces) == "one END"


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    pieces = feed(detokenizer(stop=["a"], min_tokens=4), "aaabca")
    assert "".join(piece.text for piece in pieces) == "aaabc"
    assert pieces[-1].stop == "a"


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_the_text_of_a_stop_token_is_left_out_unless_wanted(include: bool, text: str) -> None:
    target = detokenizer(include_stop_str_in_output=include)
    token_ids = BYTES.encode("abc")
    piece = target.add(token_ids, finished=True, stop_token=token_ids[-1])
    assert (piece.text, piece.num_tokens) == (text, 3)
