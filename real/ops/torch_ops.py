"""The portable way: plain torch, for every type and device. This is also the most readable account of a layer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from real.attention.interface import AttentionBackend, AttentionMetadata
from real.attention.torch_attention import TorchAttention
from real.ops.interface import LayerWeights


@dataclass(slots=True)
class TorchStep:
    """A step on its way through the layers."""

    residual: torch.Tensor
    #: What the last half returned and nobody has added yet.
    update: torch.Tensor | None
    cos: torch.Tensor
    sin: torch.Tensor
    plan: Any
    #: See `Ops.begin`.
    attend_s: float = 0.0

    def normed(self, norm: torch.Tensor, eps: float) -> torch.Tensor:
        """Add the update to the residual stream and return the RMS norm (Zhang and Sennrich, 2019) of the sum."""
        if self.update is not None:
            self.residual.add_(self.update)
        return functional.rms_norm(self.residual, norm.shape, norm, eps)


class TorchLayer:
    """See `Layer`."""

    def __init__(self, weights: LayerWeights, attention: AttentionBackend) -> None:
        self._weights = weights
        self._attention = attention

    def attend(self, step: TorchStep, kv_cache: torch.Tensor) -> torch.Tensor:
        """See `Layer`."""
        w = self._weights
        heads = functional.linear(step.normed(w.input_norm, w.rms_norm_eps), w.qkv.weight, w.qkv.bias)
        heads = heads.view(len(heads), -1, w.head_dim)
        query, key, value = heads.split_with_sizes([w.num_heads, w.num_kv_heads, w.num_kv_heads], dim=1)
        if w.query_norm is not None and w.key_norm is not None:
            query = functional.rms_norm(query, w.query_norm.shape, w.query_norm, w.rms_norm_eps)
            key = functional.rms_norm(key, w.key_norm.shape, w.key_norm, w.rms_norm_eps)
        query, key = (_rotated(x, step.cos, step.sin) for x in (query, key))
        start = time.perf_counter()
        self._attention.write(kv_cache, key, value, step.plan)
        attended = self._attention.attend(query, kv_cache, step.plan, w.head_dim**-0.5)
        step.attend_s += time.perf_counter() - start
        step.update = functional.linear(attended, w.output.weight, w.output.bias)
        return step.update

    def feed_forward(self, step: TorchStep) -> torch.Tensor:
        """See `Layer`."""
        w = self._weights
        x = step.normed(w.post_attention_norm, w.rms_norm_eps)
        gate, up = functional.linear(x, w.gate_up.weight, w.gate_up.bias).chunk(2, dim=-1)
        step.update = functional.linear(functional.silu(gate).mul_(up), w.down.weight, w.down.bias)
        return step.update


class TorchOps:
    """See `Ops`."""

    def __init__(self) -> None:
        self.attention = TorchAttention()

    def layer(self, weights: LayerWeights) -> TorchLayer:
        """See `Ops`."""
        return TorchLayer(weights, self.attention)

    def projection(self, weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """See `Ops`."""
        return lambda x: functional.linear(x, weight).float()

    def begin(
        self, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, metadata: AttentionMetadata
    ) -> TorchStep:
        """See `Ops`."""
        return TorchStep(residual, None, cos.unsqueeze(1), sin.unsqueeze(1), self.attention.plan(metadata))

    def finish(self, step: TorchStep, norm: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops`."""
        return step.normed(norm, eps)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads [T, heads, head_dim], pairs (i, i + head_dim / 2) turned in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)
