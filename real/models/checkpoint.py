"""Where a model's weights come from: a Hugging Face folder of safetensors, or a GGUF file.

Both answer the same questions with Hugging Face's names, and both read only the slice that is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from real.models.architecture import ModelArchitecture, architecture_from_config
from real.models.gguf import GGUFFile
from schedulers.errors import InputError

if TYPE_CHECKING:
    import torch


class Checkpoint(Protocol):
    """A model on disk."""

    @property
    def architecture(self) -> ModelArchitecture:
        """What the model is made of."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole tensor `name`. Raises InputError if there is none."""

    def read(self, name: str, part: range | None = None, dim: int = 0) -> torch.Tensor:
        """The tensor `name`, or `part` of its dimension `dim`, in the type it was saved as.

        Raises:
            InputError: there is no such tensor, or its file is damaged; the message names both.
        """


def open_checkpoint(source: str) -> Checkpoint:
    """The model at `source`: a folder with config.json and safetensors, a folder with one GGUF file, or a GGUF file.

    Raises:
        InputError: there is nothing to read, or it is not a supported model; the message says what is missing.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return GGUFFile(path)
    if not path.is_dir():
        raise InputError(
            f"there is no model at {source}; give a folder with config.json and *.safetensors, or a GGUF file"
        )
    if not (path / "config.json").exists() and (ggufs := sorted(path.glob("*.gguf"))):
        if len(ggufs) > 1:
            raise InputError(f"{source} holds {len(ggufs)} GGUF files; name one of them, for example {ggufs[0]}")
        return GGUFFile(ggufs[0])
    return SafetensorsFolder(path)


class SafetensorsFolder:
    """A folder as `save_pretrained` writes it, with one safetensors file or several behind an index."""

    def __init__(self, path: Path) -> None:
        self._path = path
        generation = path / "generation_config.json"
        self.architecture = architecture_from_config(
            _read_json(path / "config.json"), _read_json(generation) if generation.exists() else {}, str(path)
        )
        self._paths = _weight_files(path)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `Checkpoint`."""
        return tuple(self._holder(name).get_slice(name).get_shape())

    def read(self, name: str, part: range | None = None, dim: int = 0) -> torch.Tensor:
        """See `Checkpoint`."""
        tensors = self._holder(name)
        if part is None:
            tensor = tensors.get_tensor(name)
        else:
            window = slice(part.start, part.stop)
            tensor = tensors.get_slice(name)[window if dim == 0 else (slice(None), window)]
        return cast("torch.Tensor", tensor)

    def _holder(self, name: str) -> Any:
        tensors = self._file_of.get(name)
        if tensors is None:
            raise InputError(f"{self._path}: none of its safetensors files holds the tensor {name!r}")
        return tensors

    @cached_property
    def _file_of(self) -> dict[str, Any]:
        """Each tensor's file, mapped into memory; not before a weight is read, because it loads torch."""
        from safetensors import SafetensorError, safe_open

        found: dict[str, Any] = {}
        for path in self._paths:
            try:
                file: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise InputError(f"{path} is damaged or no safetensors file: {error}") from None
            found |= dict.fromkeys(file.keys(), file)
        return found


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files that the folder's index names, or all there are."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise InputError(f"{folder}: there are no *.safetensors files; other formats are not read")
        return paths
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping):
        raise InputError(f"{index}: there is no 'weight_map' in it")
    paths = sorted({folder / str(name) for name in weight_map.values()})
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} is missing; {index.name} says that it holds weights")
    return paths


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} does not hold a JSON object")
    return content
