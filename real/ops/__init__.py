"""What computes a decoder's layers, behind one small interface: a portable way, and a quick one on CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from real.ops.interface import Layer, LayerWeights, Ops, Weight

if TYPE_CHECKING:
    import torch

    from real.models.architecture import ModelArchitecture
    from real.parallel import Parallel

__all__ = ["Layer", "LayerWeights", "Ops", "Weight", "choose_ops"]


def choose_ops(config: ModelArchitecture, dtype: torch.dtype, device: torch.device, parallel: Parallel) -> Ops:
    """The quickest implementation for a model of that type on that device; plain torch can always do it."""
    import torch

    from real.ops.native import load_kernels
    from real.ops.native_ops import NativeOps
    from real.ops.torch_ops import TorchOps

    if dtype == torch.bfloat16 and device.type == "cpu":
        kernels = load_kernels()
        if kernels is not None and NativeOps.suits(kernels, config, parallel):
            return NativeOps(kernels)
    return TorchOps()
