"""Kernels are compiled once, and whatever stands in their way, torch takes their place and the log says why."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from real.compute_environment import compute_environment
from real.models import load_model
from real.ops.native import load_kernels
from real.ops.native_ops import NativeOps
from real.ops.torch_ops import TorchOps
from tests.real.tiny_model import logits_in_pieces, some_tokens, write_tiny_model

#: Without what earlier calls remember.
load_anew = load_kernels.__wrapped__


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def needs_kernels() -> None:
    if load_kernels() is None:
        pytest.skip("needs a C++ compiler and a processor with AVX512-BF16")


@pytest.mark.usefixtures("needs_kernels")
def test_kernels_are_compiled_once_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caplog.set_level(logging.INFO)
    assert load_anew() is not None
    assert "compiling the kernels" in caplog.text
    caplog.clear()
    assert load_anew() is not None
    assert caplog.text == ""
    assert [path.suffix for path in (tmp_path / "twinserve").iterdir()] == [".so"]


def test_without_a_compiler_torch_takes_over_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load_anew() is None
    assert "plain torch computes the model" in caplog.text
    assert "there is no C++ compiler" in caplog.text


def test_a_processor_without_the_instructions_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path / "c++", "echo '#define __AVX2__ 1'"))
    assert load_anew() is None
    assert "has no AVX512-BF16" in caplog.text


def test_a_compiler_that_fails_leaves_nothing_and_its_words_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails = 'case "$*" in *-dM*) echo "#define __AVX512BF16__ 1";; *) echo "no space left" >&2; exit 1;; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "c++", fails))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load_anew() is None
    assert "no space left" in caplog.text
    assert list((tmp_path / "cache" / "twinserve").iterdir()) == []


def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path / "c++", "echo '#define __AVX512BF16__ 1'"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_anew() is None
    assert "plain torch computes the model" in caplog.text


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize(
    ("config", "dtype", "ops"),
    [
        ({}, torch.bfloat16, NativeOps),
        ({}, torch.float32, TorchOps),
        ({"head_dim": 16}, torch.bfloat16, TorchOps),
        ({"intermediate_size": 100}, torch.bfloat16, TorchOps),
        ({"num_attention_heads": 32, "num_key_value_heads": 1}, torch.bfloat16, TorchOps),
    ],
    ids=["a usual model", "float32", "small heads", "an odd width", "very many heads on one key head"],
)
def test_kernels_compute_the_models_that_suit_them_and_torch_the_others(
    tmp_path: Path, config: dict[str, int], dtype: torch.dtype, ops: type
) -> None:
    write_tiny_model(tmp_path, **config)
    model = load_model(str(tmp_path), dtype=dtype)
    assert type(model._ops) is ops
    assert logits_in_pieces(model, some_tokens(20), [12, 1, 7]).isfinite().all()


def test_a_computing_process_gets_its_variables_unless_the_user_has_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    environment = compute_environment()
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environment["THP_MEM_ALLOC_ENABLE"] == "0"
