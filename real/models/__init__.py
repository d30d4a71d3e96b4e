"""Models: read from disk, cut into slices, and computed one step at a time over a paged KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from real.models.architecture import ModelArchitecture
from real.models.checkpoint import open_checkpoint

if TYPE_CHECKING:
    import torch

    from real.models.decoder import Model
    from real.parallel import Parallel

__all__ = ["ModelArchitecture", "load_model", "read_architecture"]


def read_architecture(source: str) -> ModelArchitecture:
    """What the model at `source` is made of, without its weights and without torch.

    Args:
        source: a Hugging Face folder with safetensors, a GGUF file, or a folder with one GGUF file.

    Raises:
        InputError: there is no such model, or it is not supported; the message says what is wrong where.
    """
    return open_checkpoint(source).architecture


def load_model(
    source: str, *, dtype: torch.dtype, device: torch.device | str = "cpu", parallel: Parallel | None = None
) -> Model:
    """The model at `source` with its weights, or with this rank's slice of them; only that slice is read.

    Raises:
        InputError: as `read_architecture`; or a tensor is missing, damaged or of the wrong shape, or the model cannot
            be shared by that many processes.
    """
    import torch

    from real.models.decoder import Model
    from real.models.layers import Source
    from real.ops import choose_ops
    from real.parallel import Parallel

    checkpoint, place, group = open_checkpoint(source), torch.device(device), parallel or Parallel()
    ops = choose_ops(checkpoint.architecture, dtype, place, group)
    return Model(Source(checkpoint, ops, group, dtype, place))
