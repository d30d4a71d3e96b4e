"""The quick way on CPUs: bfloat16 through compiled kernels, with the weights laid out for them once.

Each half of a layer is one call. Python stays out of the way because after megabytes of weights have passed through the
processor's caches, every line of it starts cold.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch.nn import functional

from real.attention.interface import AttentionMetadata
from real.attention.native_attention import NativeAttention
from real.models.architecture import ModelArchitecture
from real.ops.interface import LayerWeights, Weight
from real.ops.native import LayerFields, StepFields, WeightFields
from real.parallel import Parallel

#: Numbers in a vector, and output features in a tile of a weight, as in the kernels.
_LANES, _TILE = 16, 32


class NativeStep:
    """A step on its way through the layers; `fields` is what the kernels see of it."""

    def __init__(
        self,
        layer: LayerFields,
        residual: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        metadata: AttentionMetadata,
    ) -> None:
        """Take what `Ops.begin` takes, and the memory that a layer of that shape needs; all layers are alike."""
        tokens = len(residual)
        self.update = torch.empty_like(residual)
        self.fields = StepFields(
            tokens=tokens,
            sequences=len(metadata.query_lens),
            max_blocks=metadata.block_tables.stride(0),
            block_size=metadata.block_size,
            threads=torch.get_num_threads(),
            query_start=metadata.query_start,
            context_lens=metadata.context_lens,
            block_tables=metadata.block_tables,
            slots=metadata.slot_mapping,
            cos=cos,
            sin=sin,
            residual=residual,
            update=self.update,
            normed=torch.empty_like(residual),
            heads=residual.new_empty((tokens, layer.qkv.out_features)),
            attended=residual.new_empty((tokens, layer.output.in_features)),
            inner=residual.new_empty((tokens, layer.gate_up.out_features)),
            has_update=0,
            attend_s=0.0,
        )
        self.address = self.fields.address

    @property
    def attend_s(self) -> float:
        """See `Ops.begin`."""
        return float(self.fields.attend_s)


class NativeLayer:
    """See `Layer`."""

    def __init__(self, kernels: ctypes.CDLL, weights: LayerWeights) -> None:
        self._attention_half, self._mlp_half = kernels.attention_half, kernels.mlp_half
        self.fields = LayerFields(
            input_norm=weights.input_norm,
            post_attention_norm=weights.post_attention_norm,
            query_norm=weights.query_norm,
            key_norm=weights.key_norm,
            qkv=_tiled(weights.qkv),
            output=_tiled(weights.output),
            gate_up=_tiled_gate_up(weights.gate_up),
            down=_tiled(weights.down),
            heads=weights.num_heads,
            kv_heads=weights.num_kv_heads,
            head_dim=weights.head_dim,
            rms_norm_eps=weights.rms_norm_eps,
        )
        self._address = self.fields.address

    def attend(self, step: NativeStep, kv_cache: torch.Tensor) -> torch.Tensor:
        """See `Layer`."""
        self._attention_half(self._address, step.address, kv_cache.data_ptr())
        step.fields.has_update = 1
        return step.update

    def feed_forward(self, step: NativeStep) -> torch.Tensor:
        """See `Layer`."""
        self._mlp_half(self._address, step.address)
        return step.update


class NativeOps:
    """See `Ops`. For bfloat16 models that `suits` accepts."""

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self._kernels = kernels
        self._layers: list[NativeLayer] = []
        self.attention = NativeAttention(kernels)

    @staticmethod
    def suits(kernels: ctypes.CDLL, config: ModelArchitecture, parallel: Parallel) -> bool:
        """Whether these kernels can compute such a model."""
        group = config.num_heads / config.num_kv_heads
        vectors = (config.hidden_size, config.head_dim / 2, config.intermediate_size / parallel.size)
        return group <= kernels.max_query_heads_per_kv_head() and all(size % _LANES == 0 for size in vectors)

    def layer(self, weights: LayerWeights) -> NativeLayer:
        """See `Ops`."""
        layer = NativeLayer(self._kernels, weights)
        self._layers.append(layer)
        return layer

    def projection(self, weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """See `Ops`."""
        tiled, run = _tiled(Weight(weight)), self._kernels.projection

        def project(x: torch.Tensor) -> torch.Tensor:
            x = x.contiguous()
            out = torch.empty((len(x), tiled.out_features), dtype=torch.float32)
            run(x.data_ptr(), tiled.address, out.data_ptr(), len(x), torch.get_num_threads())
            return out

        return project

    def begin(
        self, residual: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, metadata: AttentionMetadata
    ) -> NativeStep:
        """See `Ops`."""
        return NativeStep(self._layers[0].fields, residual, cos, sin, metadata)

    def finish(self, step: NativeStep, norm: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Ops`."""
        out = torch.empty_like(step.update)
        self._kernels.finish(step.address, norm.data_ptr(), out.shape[1], eps, out.data_ptr())
        return out


def _tiled(weight: Weight) -> WeightFields:
    """[out, in] -> [out / tile, in / 2, tile, 2]: what one step of a kernel's loop reads lies together."""
    out_features, in_features = weight.weight.shape
    missing = -out_features % _TILE
    padded = functional.pad(weight.weight, (0, 0, 0, missing)) if missing else weight.weight
    tiles = padded.view(-1, _TILE, in_features // 2, 2).transpose(1, 2).contiguous()
    bias = None if weight.bias is None else functional.pad(weight.bias.float(), (0, missing))
    return WeightFields(tiles=tiles, bias=bias, in_features=in_features, out_features=out_features)


def _tiled_gate_up(weight: Weight) -> WeightFields:
    """As `_tiled`, but half of a tile is gate features, half the same up features; `out_features` counts the gates."""

    def interleaved(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(2, -1, _LANES, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)

    bias = None if weight.bias is None else interleaved(weight.bias)
    tiled = _tiled(Weight(interleaved(weight.weight), bias))
    tiled.out_features //= 2
    return tiled
