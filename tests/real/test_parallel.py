"""A model cut over several processes computes what it computes in one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from real.models import load_model
from real.parallel import Parallel
from schedulers.errors import InputError
from tests.real.parallel_rank import PIECES, TOKENS
from tests.real.tiny_model import logits_in_pieces, write_tiny_model

ROOT = Path(__file__).resolve().parents[2]


def logits_of_every_rank(folders: list[Path], size: int, dtype: str, tmp_path: Path) -> list[list[torch.Tensor]]:
    rendezvous = f"file://{tmp_path / 'rendezvous'}"
    ranks = [
        subprocess.Popen(
            [
                *[sys.executable, "-m", "tests.real.parallel_rank", str(rank), str(size), rendezvous],
                *[str(tmp_path / f"{rank}.pt"), dtype, *map(str, folders)],
            ],
            cwd=ROOT,
        )
        for rank in range(size)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [torch.load(tmp_path / f"{rank}.pt") for rank in range(size)]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.08)])
def test_two_processes_compute_what_one_computes_on_both_ranks(tmp_path: Path, dtype: str, tolerance: float) -> None:
    cases = {
        "llama": {},
        "biases": {"attention_bias": True, "mlp_bias": True},
        "one_key_head": {"num_key_value_heads": 1},
        "tied": {"tie_word_embeddings": True},
    }
    for name, config in cases.items():
        write_tiny_model(tmp_path / name, **config)
    write_tiny_model(tmp_path / "qwen3", "qwen3")
    write_tiny_model(tmp_path / "qwen2", "qwen2")
    folders = [tmp_path / name for name in (*cases, "qwen2", "qwen3")]
    ranks = logits_of_every_rank(folders, 2, dtype, tmp_path)
    for folder, first, second in zip(folders, *ranks, strict=True):
        alone = logits_in_pieces(load_model(str(folder), dtype=getattr(torch, dtype)), TOKENS, PIECES)
        assert torch.equal(first, second)
        torch.testing.assert_close(
            first, alone, atol=tolerance, rtol=tolerance, msg=lambda m, f=folder: f"{f.name}: {m}"
        )


def test_a_group_of_one_sends_nothing() -> None:
    parallel, tensor = Parallel(), torch.ones(3)
    assert parallel.all_reduce(tensor) is tensor
    assert parallel.all_gather(tensor) is tensor
    parallel.leave()


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_its_group_is_refused(rank: int, size: int) -> None:
    with pytest.raises(InputError, match=f"tensor-parallel rank {rank} of {size}"):
        Parallel(rank, size)
