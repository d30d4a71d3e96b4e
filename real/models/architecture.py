"""What a model is made of, read from its Hugging Face config without touching a weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from real.models.rope import Rope, rope_from_config, scaled_context
from schedulers.errors import InputError


@dataclass(frozen=True)
class Family:
    """How one family of decoders differs from Llama."""

    #: Biases on the query, key and value projections, whatever the config says (None: as the config says).
    qkv_bias: bool | None = None
    #: RMS norms over each head's query and key.
    qk_norm: bool = False


#: The class that Hugging Face configs name as their architecture. SmolLM2, Llama 2 and 3, and Yi all are Llama.
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(qkv_bias=False),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qk_norm=True),
}


#: No size of a model is larger.
_LARGEST = 1 << 24


@dataclass(frozen=True)
class ModelArchitecture:
    """The shape of a decoder of the Llama family. Sizes are of the whole model, not of one tensor-parallel slice."""

    #: The Hugging Face class, for example `LlamaForCausalLM`.
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    #: Most tokens (prompt and output) that the model is good for.
    max_model_len: int
    rms_norm_eps: float
    rope: Rope
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    #: Tokens that end an output; the first is the one a tokenizer calls EOS.
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    #: What the weights were saved as, for example `bfloat16`; None where the config does not say.
    dtype: str | None


def architecture_from_config(
    config: Mapping[str, Any], generation: Mapping[str, Any], source: str
) -> ModelArchitecture:
    """The architecture that `config.json` (and `generation_config.json`, which may name more EOS tokens) describes.

    A sliding window is not implemented: such a model is offered up to the window's length, where both agree.

    Raises:
        InputError: an architecture, activation, RoPE or quantization that is not supported, or a missing number.
    """
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else str(names or "(none)")
    if name not in FAMILIES:
        raise InputError(f"{source}: the architecture {name} is not supported; there are {', '.join(FAMILIES)}")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise InputError(f"{source}: hidden_act {activation!r} is not supported; models of these families use 'silu'")
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "some kind") if isinstance(quantization, Mapping) else quantization
        raise InputError(
            f"{source}: weights quantized by {method} are not supported; give float weights or a GGUF file"
        )
    try:
        return _read(config, generation, name)
    except KeyError as missing:
        raise InputError(f"{source}: the model's config lacks {missing.args[0]!r}") from None
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InputError(f"{source}: the model's config holds a value of the wrong kind: {error}") from None
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def _read(config: Mapping[str, Any], generation: Mapping[str, Any], name: str) -> ModelArchitecture:
    family = FAMILIES[name]
    num_heads, hidden_size = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    num_kv_heads = _size(config, "num_key_value_heads", num_heads)
    head_dim = _size(config, "head_dim", hidden_size // num_heads)
    vocab_size, trained_len = _size(config, "vocab_size"), _size(config, "max_position_embeddings")
    if head_dim % 2 or num_heads % num_kv_heads:
        raise InputError(
            f"head_dim={head_dim}, num_attention_heads={num_heads} and num_key_value_heads={num_kv_heads} make no "
            "model: heads have pairs of dimensions, and query heads share key heads in equal groups"
        )
    # Transformers 5 writes `rope_parameters`; before, `rope_scaling` stood beside `rope_theta`.
    rope = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    rope |= config.get("rope_parameters") or {}
    if config.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise InputError("a partial_rotary_factor other than 1 is not supported")
    max_model_len = scaled_context(rope, trained_len)
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        max_model_len = min(max_model_len, _size(config, "sliding_window"))
    bias = bool(config.get("attention_bias", False))
    return ModelArchitecture(
        name=name,
        num_layers=_size(config, "num_hidden_layers"),
        hidden_size=hidden_size,
        intermediate_size=_size(config, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=rope_from_config(rope, head_dim, trained_len),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias and family.qkv_bias is None,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        eos_token_ids=_token_ids(vocab_size, generation.get("eos_token_id"), config.get("eos_token_id")),
        bos_token_id=next(iter(_token_ids(vocab_size, config.get("bos_token_id"))), None),
        dtype=config.get("dtype") or config.get("torch_dtype"),
    )


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """The size that `config` has under `key`; without a default it must be there."""
    value = config[key] if default is None else config.get(key) or default
    size = int(value)
    if size != value or not 1 <= size <= _LARGEST:
        raise InputError(f"{key}={value!r} in the model's config: it must be a whole number from 1 to {_LARGEST}")
    return size


def _token_ids(vocab_size: int, *values: Any) -> tuple[int, ...]:
    """The ids that config entries name, each a number, a list or nothing, in order and once.

    What the vocabulary does not have is left out (some configs say -1 for none): it never comes.
    """
    found: dict[int, None] = {}
    for value in values:
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None and 0 <= int(token_id) < vocab_size:
                found[int(token_id)] = None
    return tuple(found)
