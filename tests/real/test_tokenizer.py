"""The tokenizer of a GGUF file, which is read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from real.tokenizer import Tokenizer, _keep
from tests.real.tiny_model import smollm2

TEXT = "The café is naïve 你好 <|im_end|>  1 + 1\n\n"
CHAT = [{"role": "user", "content": "Who are you?"}]


def test_a_tokenizer_from_a_gguf_file_is_kept_and_found_again_and_made_again_if_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Any:
        tokenizer = Tokenizer(str(smollm2()))
        ids = tokenizer.encode(TEXT)
        assert tokenizer.decode(ids, skip_special_tokens=False) == TEXT
        return ids, tokenizer.encode_chat(CHAT), tokenizer.chat(CHAT)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = made()
    [kept] = (tmp_path / "twinserve").iterdir()
    written = (kept / "tokenizer.json").stat().st_mtime_ns
    assert made() == first
    assert (kept / "tokenizer.json").stat().st_mtime_ns == written
    (kept / "tokenizer.json").write_text("{")
    assert made() == first
    assert list((tmp_path / "twinserve").iterdir()) == [kept]
    assert (kept / "tokenizer.json").stat().st_size > 1000


def test_a_cache_folder_that_cannot_be_written_or_was_filled_meanwhile_is_no_obstacle(tmp_path: Path) -> None:
    class Saved:
        def save_pretrained(self, folder: str) -> None:
            (Path(folder) / "tokenizer.json").write_text("mine")

    _keep(Saved(), Path("/proc/none/tokenizer"))
    there = tmp_path / "tokenizer"
    there.mkdir()
    (there / "tokenizer.json").write_text("another's")
    _keep(Saved(), there)
    assert (there / "tokenizer.json").read_text() == "another's"
    assert list(tmp_path.iterdir()) == [there]
