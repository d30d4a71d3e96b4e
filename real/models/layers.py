"""Reads a decoder's weights, or one rank's slices of them, and holds what is not computed layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from real.models.architecture import ModelArchitecture
from real.models.checkpoint import Checkpoint
from real.models.rope import Rope
from real.ops import LayerWeights, Ops, Weight
from real.parallel import Parallel
from schedulers.errors import InputError


@dataclass(frozen=True)
class Source:
    """Where weights come from, who computes with them, and what they become."""

    checkpoint: Checkpoint
    ops: Ops
    parallel: Parallel
    dtype: torch.dtype
    device: torch.device

    def tensor(self, name: str, shape: tuple[int, ...], part: range | None = None, dim: int = 0) -> torch.Tensor:
        """The tensor `name`, whose whole shape must be `shape`, or a part of it (see `Checkpoint.read`)."""
        if (there := self.checkpoint.shape(name)) != shape:
            raise InputError(f"the tensor {name!r} has shape {there}; its model's config says {shape}")
        tensor = self.checkpoint.read(name, part, dim)
        if not tensor.is_floating_point():
            raise InputError(f"the tensor {name!r} holds {tensor.dtype}, which are no weights of these models")
        return tensor.to(device=self.device, dtype=self.dtype)


class Share(NamedTuple):
    """Features of the whole model, and which of them are this rank's."""

    total: int
    part: range


def read_layer(source: Source, name: str) -> LayerWeights:
    """The layer whose tensors' names begin with `name`.

    Query, key, value, gate and up projections are cut by their output features (column-parallel), the output and down
    projections by their input features (row-parallel), so that each half of a layer needs one sum over the ranks.
    """
    config, parallel = source.checkpoint.architecture, source.parallel
    dim, hidden = config.head_dim, config.hidden_size
    heads, kv_heads = parallel.share(config.num_heads, "attention heads"), kv_heads_of(config, parallel)
    query = Share(config.num_heads * dim, range(heads.start * dim, heads.stop * dim))
    key = Share(config.num_kv_heads * dim, range(kv_heads.start * dim, kv_heads.stop * dim))
    inner = Share(config.intermediate_size, parallel.share(config.intermediate_size, "MLP features"))

    def norm(module: str, size: int) -> torch.Tensor:
        return source.tensor(f"{name}.{module}.weight", (size,))

    def column_parallel(shares: dict[str, Share], *, bias: bool) -> Weight:
        """Projections of one input, side by side."""
        weights = [source.tensor(f"{name}.{m}.weight", (s.total, hidden), s.part) for m, s in shares.items()]
        biases = [source.tensor(f"{name}.{m}.bias", (s.total,), s.part) for m, s in shares.items() if bias]
        return Weight(torch.cat(weights), torch.cat(biases) if biases else None)

    def row_parallel(module: str, share: Share, *, bias: bool) -> Weight:
        weight = source.tensor(f"{name}.{module}.weight", (hidden, share.total), share.part, dim=1)
        # The sum over the ranks must hold the bias once.
        once = bias and parallel.rank == 0
        return Weight(weight, source.tensor(f"{name}.{module}.bias", (hidden,)) if once else None)

    return LayerWeights(
        input_norm=norm("input_layernorm", hidden),
        post_attention_norm=norm("post_attention_layernorm", hidden),
        query_norm=norm("self_attn.q_norm", dim) if config.qk_norm else None,
        key_norm=norm("self_attn.k_norm", dim) if config.qk_norm else None,
        qkv=column_parallel(
            {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": key}, bias=config.qkv_bias
        ),
        output=row_parallel("self_attn.o_proj", query, bias=config.output_bias),
        gate_up=column_parallel({"mlp.gate_proj": inner, "mlp.up_proj": inner}, bias=config.mlp_bias),
        down=row_parallel("mlp.down_proj", inner, bias=config.mlp_bias),
        num_heads=len(heads),
        num_kv_heads=len(kv_heads),
        head_dim=dim,
        rms_norm_eps=config.rms_norm_eps,
    )


def kv_heads_of(config: ModelArchitecture, parallel: Parallel) -> range:
    """The key heads of this rank. Where there are fewer than ranks, several ranks hold the same one."""
    if config.num_kv_heads >= parallel.size:
        return parallel.share(config.num_kv_heads, "key/value heads")
    if parallel.size % config.num_kv_heads:
        raise InputError(
            f"{config.num_kv_heads} key/value heads cannot be repeated equally on {parallel.size} processes"
        )
    head = parallel.rank * config.num_kv_heads // parallel.size
    return range(head, head + 1)


class Vocabulary:
    """Token embeddings and the projection back to logits, cut by tokens (the last rank's part may be padded)."""

    def __init__(self, source: Source) -> None:
        config = source.checkpoint.architecture
        self._parallel = source.parallel
        self._vocab_size = config.vocab_size
        self._share = -(-config.vocab_size // source.parallel.size)
        first = min(source.parallel.rank * self._share, config.vocab_size)
        self._part = range(first, min(first + self._share, config.vocab_size))

        def read(name: str) -> torch.Tensor:
            rows = source.tensor(name, (config.vocab_size, config.hidden_size), self._part)
            return functional.pad(rows, (0, 0, 0, self._share - len(rows))) if len(rows) < self._share else rows

        self._embeddings = read("model.embed_tokens.weight")
        head = self._embeddings if config.tie_word_embeddings else read("lm_head.weight")
        self._project = source.ops.projection(head)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Ids [T] -> embeddings [T, hidden]."""
        if self._parallel.size == 1:
            return functional.embedding(token_ids, self._embeddings)
        local = token_ids - self._part.start
        elsewhere = (local < 0) | (local >= len(self._part))
        mine = functional.embedding(local.masked_fill(elsewhere, 0), self._embeddings)
        return self._parallel.all_reduce(mine.masked_fill_(elsewhere.unsqueeze(-1), 0.0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [R, hidden] -> logits, float32 [R, vocab], on every rank."""
        return self._parallel.all_gather(self._project(hidden))[:, : self._vocab_size]


class Rotation:
    """The cosines and sines of a step's positions, computed once for all layers."""

    def __init__(self, rope: Rope, device: torch.device) -> None:
        self._frequencies = torch.tensor(rope.frequencies, dtype=torch.float32, device=device)
        self._magnitude = rope.magnitude

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions [T] -> cosines and sines, each float32 [T, head_dim / 2]."""
        angles = torch.outer(positions.float(), self._frequencies)
        cos, sin = angles.cos(), angles.sin()
        if self._magnitude != 1.0:
            cos, sin = cos.mul_(self._magnitude), sin.mul_(self._magnitude)
        return cos, sin
