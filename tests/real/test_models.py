"""Every family and RoPE variant computes what transformers computes, from either format, whole or in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from real.models import load_model, read_architecture
from real.models.checkpoint import open_checkpoint
from real.models.decoder import Model
from real.models.layers import Source
from real.ops.native import load_kernels
from real.ops.native_ops import NativeOps
from real.ops.torch_ops import TorchOps
from real.parallel import Parallel
from tests.real.tiny_model import (
    Cached,
    logits_in_pieces,
    reference_logits,
    smollm2,
    some_tokens,
    write_gguf,
    write_tiny_model,
)

TOKENS = some_tokens(200)
#: A prompt in chunks, then decodes, then a long chunk over that context.
PIECES = [50, 37, *[1] * 20, 93]

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def rope(name: str) -> dict[str, Any]:
    return {"rope_parameters": {**ROPES[name], "rope_theta": 10000.0}}


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "llama with one key head": ("llama", {"num_key_value_heads": 1}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


def assert_same_logits(model: Model, reference: Any, tokens: list[int] = TOKENS, tolerance: float = 1e-4) -> None:
    expected = reference_logits(reference, tokens)
    for pieces in ([len(tokens)], PIECES):
        computed = logits_in_pieces(model, tokens, pieces)
        torch.testing.assert_close(computed, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_computes_what_transformers_computes(tmp_path: Path, family: str) -> None:
    model_type, config = FAMILIES[family]
    reference = write_tiny_model(tmp_path, model_type, **config)
    assert_same_logits(load_model(str(tmp_path), dtype=torch.float32), reference)


@pytest.mark.parametrize("name", ROPES)
def test_each_rope_variant_computes_what_transformers_computes(tmp_path: Path, name: str) -> None:
    reference = write_tiny_model(tmp_path, **rope(name))
    assert_same_logits(load_model(str(tmp_path), dtype=torch.float32), reference)


def test_yarn_obeys_its_optional_numbers(tmp_path: Path) -> None:
    parameters = {**rope("yarn")["rope_parameters"], "beta_fast": 16.0, "mscale": 0.7, "mscale_all_dim": 1.2}
    reference = write_tiny_model(tmp_path, rope_parameters=parameters)
    assert_same_logits(load_model(str(tmp_path), dtype=torch.float32), reference)


def test_a_stretched_rope_offers_the_stretched_context(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "linear", **rope("linear"))
    write_tiny_model(tmp_path / "yarn", **rope("yarn"))
    write_tiny_model(tmp_path / "llama3", **rope("llama3"))
    assert read_architecture(str(tmp_path / "linear")).max_model_len == 4 * 256
    assert read_architecture(str(tmp_path / "yarn")).max_model_len == 256
    assert read_architecture(str(tmp_path / "llama3")).max_model_len == 256


def test_a_model_with_a_sliding_window_is_offered_up_to_the_window(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "mistral", sliding_window=128)
    assert read_architecture(str(tmp_path)).max_model_len == 128


@pytest.mark.parametrize(("architecture", "family"), [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")])
def test_a_gguf_file_gives_the_same_logits_as_the_folder_it_was_made_from(
    tmp_path: Path, architecture: str, family: str
) -> None:
    model_type, config = FAMILIES[family]
    reference = write_tiny_model(tmp_path / "folder", model_type, **config)
    write_gguf(tmp_path / "model.gguf", reference, architecture)
    assert_same_logits(load_model(str(tmp_path / "model.gguf"), dtype=torch.float32), reference)


@pytest.mark.parametrize("name", ["linear", "yarn"])
def test_a_gguf_file_says_how_its_rope_is_stretched(tmp_path: Path, name: str) -> None:
    reference = write_tiny_model(tmp_path / "folder", **rope(name))
    stretch = {"rope.scaling.type": name, "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    write_gguf(tmp_path / "model.gguf", reference, "llama", stretch)
    assert_same_logits(load_model(str(tmp_path / "model.gguf"), dtype=torch.float32), reference)


def test_a_gguf_file_may_divide_each_frequency_by_a_number_of_its_own(tmp_path: Path) -> None:
    reference = write_tiny_model(tmp_path / "folder", **rope("llama3"))
    divisors = reference.model.rotary_emb.original_inv_freq.new_tensor([10000 ** (-i / 32) for i in range(0, 32, 2)])
    divisors /= reference.model.rotary_emb.inv_freq
    reference.register_buffer("rope_freqs", divisors)
    state = reference.state_dict
    reference.state_dict = lambda: {("rope_freqs.weight" if k == "rope_freqs" else k): v for k, v in state().items()}
    write_gguf(tmp_path / "model.gguf", reference, "llama")
    assert_same_logits(load_model(str(tmp_path / "model.gguf"), dtype=torch.float32), reference)


def test_smollm2_computes_what_transformers_computes_from_the_same_file() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = smollm2()
    reference = LlamaForCausalLM(LlamaConfig(**load_gguf_checkpoint(str(path))["config"])).eval()
    weights = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=reference)["tensors"]
    missing, unexpected = reference.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied
    model = load_model(str(path), dtype=torch.float32)
    assert_same_logits(model, reference, some_tokens(200, 49152), tolerance=1e-3)
    assert model.config.eos_token_ids == (2,)
    assert model.config.max_model_len == 8192


def test_a_batch_of_chunks_and_decodes_gives_each_sequence_what_it_gets_alone(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    assert_batch_changes_nothing(load_model(str(tmp_path), dtype=torch.float32), tolerance=1e-5)


def assert_batch_changes_nothing(model: Model, tolerance: float) -> None:
    prompts = [some_tokens(length, seed=length) for length in (5, 33, 90, 16, 1, 130)]
    alone = [logits_in_pieces(model, prompt, [len(prompt)]) for prompt in prompts]
    cached = Cached(model, len(prompts))
    first = {sequence: prompt[: (len(prompt) + 1) // 2] for sequence, prompt in enumerate(prompts)}
    cached.step(first)
    # Now sequences 0 and 3 decode, 4 is done, and the others compute another chunk.
    second = {s: p[cached.done[s] :] for s, p in enumerate(prompts) if len(p) > 1}
    second[0], second[3] = second[0][:1], second[3][:1]
    logits = cached.step(second).split([len(tokens) for tokens in second.values()])
    for sequence, rows in zip(second, logits, strict=True):
        begin = len(first[sequence])
        torch.testing.assert_close(rows, alone[sequence][begin : begin + len(rows)], atol=tolerance, rtol=0)


# --- compiled kernels -------------------------------------------------------------------------------------------------


def native(folder: Path) -> Model:
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("needs a C++ compiler and a processor with AVX512-BF16")
    checkpoint = open_checkpoint(str(folder))
    return Model(Source(checkpoint, NativeOps(kernels), Parallel(), torch.bfloat16, torch.device("cpu")))


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_bfloat16_is_as_close_to_float32_as_torchs_is(tmp_path: Path, family: str) -> None:
    model_type, config = FAMILIES[family]
    write_tiny_model(tmp_path, model_type, **config)
    exact = logits_in_pieces(load_model(str(tmp_path), dtype=torch.float32), TOKENS, [len(TOKENS)])
    checkpoint = open_checkpoint(str(tmp_path))
    torch_model = Model(Source(checkpoint, TorchOps(), Parallel(), torch.bfloat16, torch.device("cpu")))
    usual = (logits_in_pieces(torch_model, TOKENS, PIECES) - exact).abs()
    ours = (logits_in_pieces(native(tmp_path), TOKENS, PIECES) - exact).abs()
    assert ours.mean() < 1.2 * usual.mean()
    assert ours.max() < 1.5 * usual.max()


def test_compiled_kernels_give_the_same_bits_alone_and_in_any_batch(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    assert_batch_changes_nothing(native(tmp_path), tolerance=0.0)
