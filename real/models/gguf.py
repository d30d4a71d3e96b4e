"""GGUF files, llama.cpp's format: one file with the metadata, the tokenizer and (usually quantized) weights.

Only the directory at the file's head is parsed here, because the reader of the `gguf` package spends seconds on the
tokenizer's hundred thousand strings, which nothing here needs; the package's dequantization does the rest. Transformers
would read such files too, but takes that time twice and needs one more package. The format is described at
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real.models.architecture import architecture_from_config
from schedulers.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}

#: Hugging Face's names of tensors, and llama.cpp's.
_OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INSIDE_LAYERS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

#: struct formats of the metadata's scalar types, by GGUF's number; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies: `shape` with rows first, `kind` the number of its quantization, `offset` in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUFFile:
    """A checkpoint in one GGUF file, read through a memory map. Weights come out dequantized, as float32."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._metadata, self._entries = _read_directory(self._bytes)
        except (OSError, ValueError, OverflowError, struct.error) as error:
            raise InputError(f"{path} is damaged or no GGUF file: {error}") from None
        self.architecture = architecture_from_config(self._config(), {}, str(path))
        # Files for llama.cpp's `llama` keep a rotated pair's two dimensions side by side; see `_unpermute`.
        self._permuted = self._metadata["general.architecture"] == "llama"

    def shape(self, name: str) -> tuple[int, ...]:
        """See `Checkpoint`."""
        own_name = _gguf_name(name)
        if own_name not in self._entries:
            raise InputError(f"{self._path}: there is no tensor {own_name!r} ({name!r}) in it")
        return self._entries[own_name].shape

    def read(self, name: str, part: range | None = None, dim: int = 0) -> torch.Tensor:
        """See `Checkpoint`."""
        import torch

        self.shape(name)
        own_name = _gguf_name(name)
        tensor = torch.from_numpy(self._dequantize(own_name, part if dim == 0 else None))
        if self._permuted and re.search(r"\.[qk]_proj\.", name):
            tensor = _unpermute(tensor, self.architecture.head_dim)
        return tensor if part is None or dim == 0 else tensor[:, part.start : part.stop]

    def _dequantize(self, name: str, rows: range | None = None) -> NDArray[np.float32]:
        """The tensor that the file calls `name`, or some of its rows."""
        import numpy as np
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        entry = self._entries[name]
        try:
            kind = GGMLQuantizationType(entry.kind)
            block_values, block_bytes = GGML_QUANT_SIZES[kind]
            matrix = (1, *entry.shape) if len(entry.shape) == 1 else entry.shape
            row_bytes = matrix[1] // block_values * block_bytes
            raw = np.frombuffer(self._bytes, np.uint8, matrix[0] * row_bytes, entry.offset).reshape(
                matrix[0], row_bytes
            )
            if len(entry.shape) == 1:
                values = dequantize(raw, kind)[0]
                values = values if rows is None else values[rows.start : rows.stop]
            else:
                values = dequantize(raw if rows is None else raw[rows.start : rows.stop], kind)
        except NotImplementedError:
            raise InputError(f"{self._path}: {name!r} is quantized as {kind.name}, which is not supported") from None
        except (ValueError, OverflowError) as error:
            raise InputError(f"{self._path}: {name!r} cannot be read, the file is damaged: {error}") from None
        return np.require(values, np.float32, ["C", "W"])  # what is not quantized is still the file itself

    def _config(self) -> dict[str, Any]:
        """The metadata in the words of a Hugging Face config."""
        kind = self._metadata.get("general.architecture", "(none)")

        def get(key: str, default: Any = None) -> Any:
            return self._metadata.get(f"{kind}.{key}", default)

        config = {
            "architectures": [_CLASSES.get(kind, f"{kind} (GGUF)")],
            "num_hidden_layers": get("block_count"),
            "hidden_size": get("embedding_length"),
            "intermediate_size": get("feed_forward_length"),
            "num_attention_heads": get("attention.head_count"),
            "num_key_value_heads": get("attention.head_count_kv"),
            "head_dim": get("attention.key_length"),
            "max_position_embeddings": get("context_length"),
            "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
            "sliding_window": get("attention.sliding_window"),
            "rope_parameters": self._rope(get),
            "vocab_size": self._rows_of("token_embd.weight"),
            "tie_word_embeddings": "output.weight" not in self._entries,
            "attention_bias": "blk.0.attn_q.bias" in self._entries,
            "eos_token_id": [
                token_id
                for key in ("eos_token_id", "eot_token_id")
                if (token_id := self._metadata.get(f"tokenizer.ggml.{key}")) is not None
            ],
            "bos_token_id": self._metadata.get("tokenizer.ggml.bos_token_id"),
        }
        return {key: value for key, value in config.items() if value is not None}

    def _rope(self, get: Any) -> dict[str, Any]:
        parameters = {
            "rope_theta": get("rope.freq_base", 10000.0),
            "rope_type": get("rope.scaling.type", "default").replace("none", "default"),
            "factor": get("rope.scaling.factor"),
            "original_max_position_embeddings": get("rope.scaling.original_context_length"),
            "attention_factor": get("rope.scaling.attn_factor"),
        }
        if "rope_freqs.weight" in self._entries:
            parameters |= {"rope_type": "divided", "divisors": self._dequantize("rope_freqs.weight").tolist()}
        return {key: value for key, value in parameters.items() if value is not None}

    def _rows_of(self, name: str) -> int | None:
        return self._entries[name].shape[0] if name in self._entries else None


def _gguf_name(name: str) -> str:
    """llama.cpp's name for the tensor that Hugging Face calls `name`."""
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
        layer, module, kind = match.groups()
        return f"blk.{layer}.{_INSIDE_LAYERS.get(module, module)}.{kind}"
    return _OUTSIDE_LAYERS.get(name, name)


def _unpermute(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """From rotated pairs (2i, 2i + 1) within a head, as llama.cpp wants them, to (i, i + head_dim/2), as we do."""
    return tensor.view(-1, head_dim // 2, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _read_directory(data: mmap.mmap) -> tuple[Mapping[str, Any], Mapping[str, _Entry]]:
    """The metadata (arrays left out: they hold the tokenizer) and the tensors of a GGUF file.

    Raises:
        ValueError, OverflowError, struct.error: these bytes are no GGUF file, or it ends too early.
    """
    if data[:4] != b"GGUF":
        raise ValueError(f"it begins with {data[:4]!r} instead of b'GGUF'")
    version, num_tensors, num_values = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ValueError(f"version {version} of the format is not supported; versions 2 and 3 are")
    position = 24

    def take(form: str) -> Any:
        nonlocal position
        (value,) = struct.unpack_from("<" + form, data, position)
        position += struct.calcsize("<" + form)
        return value

    def take_string() -> str:
        nonlocal position
        length = take("Q")
        if length > len(data) - position:
            raise ValueError("a string reaches beyond the end of the file")
        position += length
        return data[position - length : position].decode("utf-8")

    def skip_array() -> None:
        nonlocal position
        kind, count = take("I"), take("Q")
        if kind == _STRING:
            unpack = struct.Struct("<Q").unpack_from
            for _ in range(count):
                position += 8 + unpack(data, position)[0]
        elif kind in _SCALARS:
            position += count * struct.calcsize("<" + _SCALARS[kind])
        else:
            raise ValueError(f"an array holds values of unknown type {kind}")

    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key, kind = take_string(), take("I")
        if kind == _ARRAY:
            skip_array()
        elif kind == _STRING:
            metadata[key] = take_string()
        elif kind in _SCALARS:
            metadata[key] = take(_SCALARS[kind])
        else:
            raise ValueError(f"the metadata {key!r} is of unknown type {kind}")

    entries: dict[str, _Entry] = {}
    for _ in range(num_tensors):
        name, num_dims = take_string(), take("I")
        shape = tuple(take("Q") for _ in range(num_dims))
        entries[name] = _Entry(tuple(reversed(shape)), take("I"), take("Q"))
    alignment = metadata.get("general.alignment", 32)
    start = (position + alignment - 1) // alignment * alignment
    return metadata, {n: _Entry(e.shape, e.kind, start + e.offset) for n, e in entries.items()}
