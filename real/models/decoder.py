"""The decoder that Llama, SmolLM2, Mistral, Yi, Qwen2 and Qwen3 share; they differ in biases, norms and RoPE alone.

One forward computes a step's flat batch: prompts, chunks of prompts and decodes of all requests, one token after the
other.
"""

from __future__ import annotations

import torch

from real.attention import AttentionMetadata
from real.models.layers import Rotation, Source, Vocabulary, kv_heads_of, read_layer


class Model:
    """A decoder with its weights, or with one rank's slice of them.

    Attributes:
        config: the whole model's architecture.
        dtype: of weights, hidden states and KV cache.
        device: where all of these are.
        layers: what computes each decoder layer.
    """

    def __init__(self, source: Source) -> None:
        self.config = config = source.checkpoint.architecture
        self.dtype = source.dtype
        self.device = source.device
        self._parallel = source.parallel
        self._ops = source.ops
        self._vocabulary = Vocabulary(source)
        self._rotation = Rotation(config.rope, source.device)
        self.layers = [
            source.ops.layer(read_layer(source, f"model.layers.{index}")) for index in range(config.num_layers)
        ]
        self._norm = source.tensor("model.norm.weight", (config.hidden_size,))

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """The shape of one layer's KV cache on this rank; it holds `dtype`.

        Raises:
            InputError: blocks of that size do not suit what computes the attention; the message says which do.
        """
        num_kv_heads = len(kv_heads_of(self.config, self._parallel))
        return self._ops.attention.kv_cache_shape(num_blocks, block_size, num_kv_heads, self.config.head_dim)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Compute a step.

        Args:
            token_ids: [T], the tokens of all requests in batch order.
            positions: [T], each token's place in its own request.
            kv_caches: one a layer, of `kv_cache_shape`; the step's keys and values are written into them.
            metadata: which tokens belong together, and where their keys and values are.

        Returns:
            Hidden states [T, hidden_size] after the last norm.
        """
        step = self._ops.begin(self._vocabulary.embed(token_ids), *self._rotation(positions), metadata)
        all_reduce = self._parallel.all_reduce
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            all_reduce(layer.attend(step, kv_cache))
            all_reduce(layer.feed_forward(step))
        return self._ops.finish(step, self._norm, self.config.rms_norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states [R, hidden_size] -> logits, float32 [R, vocab_size], on every rank."""
        return self._vocabulary.logits(hidden)
