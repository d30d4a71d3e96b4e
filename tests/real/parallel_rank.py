"""One process of a tensor-parallel group: computes a sequence with a folder's model, and saves its logits.

Usage: python -m tests.real.parallel_rank RANK SIZE RENDEZVOUS OUTPUT DTYPE FOLDER...
"""

from __future__ import annotations

import sys

import torch

from real.models import load_model
from real.parallel import Parallel
from tests.real.tiny_model import logits_in_pieces, some_tokens

TOKENS = some_tokens(60)
PIECES = [40, *[1] * 5, 15]


def main(rank: int, size: int, rendezvous: str, output: str, dtype: str, folders: list[str]) -> None:
    torch.set_num_threads(1)
    parallel = Parallel.join(rank, size, rendezvous, timeout_s=60)
    models = [load_model(folder, dtype=getattr(torch, dtype), parallel=parallel) for folder in folders]
    torch.save([logits_in_pieces(model, TOKENS, PIECES) for model in models], output)
    parallel.leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], sys.argv[6:])
