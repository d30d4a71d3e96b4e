"""Compiles the kernels on the machine that runs them, once, and loads them.

A plain shared library called through ctypes: it builds in seconds with nothing but a C++ compiler, needs neither
Python's nor torch's headers, and shares torch's OpenMP threads because the loader finds torch's libgomp already there.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from real.cache_folder import cache_folder

_FOLDER = Path(__file__).with_name("kernels")
_FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC"]

_logger = logging.getLogger(__name__)


class Fields(ctypes.Structure):
    """A struct of layer.cpp. Tensors are given as they are, stay alive with it, and become pointers; None is null."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**{name: getattr(value, "data_ptr", lambda v=value: v)() for name, value in values.items()})
        self._alive = list(values.values())
        self.address = ctypes.addressof(self)


def _fields(**groups: str) -> list[tuple[str, Any]]:
    kinds = {"pointers": ctypes.c_void_p, "integers": ctypes.c_int64, "doubles": ctypes.c_double}
    return [(name, kinds[kind.rstrip("_")]) for kind, names in groups.items() for name in names.split()]


class WeightFields(Fields):
    """`Weight`: tiles as `native_ops.tiled` lays them, float32 bias or null, input and output features."""

    _fields_: ClassVar = _fields(pointers="tiles bias", integers="in_features out_features")


class LayerFields(Fields):
    """`Layer`: bfloat16 norms (the last two may be null), linear layers, numbers of heads."""

    _fields_: ClassVar = [
        *_fields(pointers="input_norm post_attention_norm query_norm key_norm"),
        *[(name, WeightFields) for name in ("qkv", "output", "gate_up", "down")],
        *_fields(integers="heads kv_heads head_dim", doubles="rms_norm_eps"),
    ]


class StepFields(Fields):
    """`Step`: the batch, and the memory that a half of a layer computes in."""

    _fields_: ClassVar = _fields(
        integers="tokens sequences max_blocks block_size threads",
        pointers="query_start context_lens block_tables slots cos sin residual update normed heads attended inner",
        integers_="has_update",
        doubles="attend_s",
    )


#: p: pointer, i: 64-bit integer, d: double; as in layer.cpp.
_FUNCTIONS = {
    "attention_half": "ppp",
    "mlp_half": "pp",
    "finish": "ppidp",
    "projection": "pppii",
    "write_cache": "ppipiip",
    "attend_cache": "piippiipd",
}
_KINDS = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_double}


@cache
def load_kernels() -> ctypes.CDLL | None:
    """The compiled kernels, from the user's cache folder or built into it; None, and why in the log, without them."""
    try:
        library = _load()
    except OSError as reason:
        _logger.warning("plain torch computes the model, slower than compiled kernels would: %s", reason)
        return None
    for name, kinds in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [_KINDS[kind] for kind in kinds], None
    library.max_query_heads_per_kv_head.restype = ctypes.c_int64
    return library


def _load() -> ctypes.CDLL:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise OSError("there is no C++ compiler (CXX may name one)")
    # What -march=native stands for here; a home folder may be shared by unlike machines.
    target = _run([compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    if "__AVX512BF16__" not in target:
        raise OSError("this processor, or this compiler, has no AVX512-BF16")
    path = _library_path(compiler, target)
    if not path.exists():
        _build(compiler, path)
    return ctypes.CDLL(str(path))


def _library_path(compiler: str, target: str) -> Path:
    """Where the library for this source, compiler and processor is kept."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(_FOLDER.iterdir()) if path.is_file()]
    digest = hashlib.sha256("\0".join([compiler, *_FLAGS, target, *sources]).encode()).hexdigest()
    return cache_folder() / f"kernels-{digest[:16]}.so"


def _build(compiler: str, path: Path) -> None:
    _logger.info("compiling the kernels to %s, once", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        _run([compiler, *_FLAGS, "-o", str(built), str(_FOLDER / "layer.cpp")])
        os.replace(built, path)


def _run(command: list[str]) -> str:
    """What a command printed; an OSError with its complaint if it failed."""
    result = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - the user's compiler
    if result.returncode != 0:
        raise OSError(f"{command[0]} failed: {result.stderr.strip()}")
    return result.stdout
