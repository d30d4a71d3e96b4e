"""What computes a decoder's layers, and the weights that it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from real.attention.interface import AttentionBackend, AttentionMetadata


@dataclass(frozen=True)
class Weight:
    """A linear layer: weight [out, in], and bias [out] where there is one."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer, or one rank's slice of it."""

    #: Over the hidden size: before attention, and before the MLP.
    input_norm: torch.Tensor
    post_attention_norm: torch.Tensor
    #: Over a head's dimensions, for models that norm queries and keys (Qwen3).
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    #: Query, key and value heads, in this order, from one product.
    qkv: Weight
    output: Weight
    #: Gate features and up features, in this order.
    gate_up: Weight
    down: Weight
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float


class Layer(Protocol):
    """One decoder layer. Each half adds what the previous half returned to the residual stream before it begins."""

    def attend(self, step: Any, kv_cache: torch.Tensor) -> torch.Tensor:
        """The attention half, [T, hidden]; under tensor parallelism to be summed over the ranks, in place."""

    def feed_forward(self, step: Any) -> torch.Tensor:
        """The MLP half, likewise."""


class Ops(Protocol):
    """One way to compute: what is laid out when a model is loaded, and what happens in a step."""

    @property
    def attention(self) -> AttentionBackend:
        """The attention of its layers, which decides how the KV cache is laid out."""

    def layer(self, weights: LayerWeights) -> Layer:
        """A layer that computes with these weights, which may be laid out anew."""

    def projection(self, weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """The function x [R, in] -> x @ weight.T, float32 [R, out]."""

    def begin(self, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, metadata: AttentionMetadata) -> Any:
        """Start a step.

        Args:
            residual: the tokens' embeddings [T, hidden], to which the layers add in place.
            cos, sin: of the rotation of each token's heads, float32 [T, head_dim / 2].
            metadata: which tokens belong together, and where their keys and values are.

        Returns:
            what the layers hand on; its `attend_s` is the seconds that `attention` took on a CPU, in all layers so far.
        """

    def finish(self, step: Any, norm: torch.Tensor, eps: float) -> torch.Tensor:
        """Add what the last half returned, and return the norm of the sum, [T, hidden]."""
