"""Prices from the kernel times that NVIDIA measured for its data-centre GPUs, through aiconfigurator-core."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.costs.composition import as_one_prefill
from sim.costs.interpolation import Extrapolations, Grid
from sim.hardware import Device, ModelShape, check_tensor_parallel

_PACKAGE = "aiconfigurator-core"
#: Whose kernels were measured.
_BACKEND = "vllm"
#: Sides of the tables: each number of tokens, as far as steps usually go, since GEMM times jump from tile to tile; else
#: closer where time bends (the square of a chunk), and wider where it is a line.
_TOKENS = [*range(1, 4096), *range(4096, 16384 + 1, 64)]
_CHUNKS = sorted({round(16 * 2 ** (i / 4)) for i in range(41)})
_CONTEXTS = [0, *(2**i for i in range(4, 18))]
_DECODES = [*range(1, 16), *range(16, 64, 4), *range(64, 256, 16), *range(256, 1024 + 1, 64)]
_DECODE_CONTEXTS = [1, *(round(16 * 2 ** (i / 2)) for i in range(27))]

_AXES: dict[str, dict[str, Sequence[float]]] = {
    "linear": {"tokens": _TOKENS},
    "lm_head": {"sequences": _DECODES},
    "prefill": {"prefill_chunk": _CHUNKS, "kv_prefill": _CONTEXTS},
    "decode": {"n_decode": _DECODES, "kv_decode": _DECODE_CONTEXTS},
}
#: Table -> seconds at each combination of its axes, last axis fastest.
_Tables = dict[str, list[float]]


class AIConfigurator:
    """A step is the sum of aiconfigurator's parts, each asked once on a grid and interpolated from there.

    - linear layers, norms, embedding and (with tensor parallelism) all-reduces, over the tokens of the step;
    - the output projection, over the sequences that sample;
    - attention of prefills, over chunk and context: measured without context only; aiconfigurator scales it to a chunk
      over existing KV, which is arithmetic and not a measurement. Several prefills are priced as one of equal work
      (`as_one_prefill`);
    - attention of decodes, over their number and mean context;
    - the device's `step_overhead_s`, which its tables do not hold.

    Attention of prefills and decodes in one batch was not measured either: the two are added, as aiconfigurator does.
    Norms and elementwise operations are formulas there. Interpolating on the grid instead of asking for each step moves
    a step's time by 0.1 % on average, and by 2.5 % at most of 3,000 steps of Llama-3.1-8B on an H200
    (tests/sim/costs/test_aiconfigurator.py).

    Building takes 1 to 4 seconds, so the tables are kept in the user's cache directory, by version, device, shape and
    grid; a cache that cannot be written or read is done without.
    """

    def __init__(
        self, *, model: ModelShape, device: Device, tensor_parallel: int = 1, cache_dir: str | None = None
    ) -> None:
        """Load or build the tables; `cache_dir` defaults to `$XDG_CACHE_HOME/twinserve`.

        Raises:
            InputError: the package is not installed, or has no figures for this model on this device; it says why.
        """
        check_tensor_parallel(model, tensor_parallel)
        try:
            package_version = version(_PACKAGE)
        except PackageNotFoundError:
            raise InputError(f"cost=aiconfigurator needs {_PACKAGE}: pip install twinserve[profiles]") from None
        if (model.bytes_per_weight, model.bytes_per_kv_element) != (2, 2):
            raise InputError(f"cost=aiconfigurator prices bfloat16 weights and KV cache; {model.name} has others")
        if model.num_experts:
            raise InputError(f"cost=aiconfigurator prices dense models, and {model.name} is a mixture of experts")
        if device.aiconfigurator_system is None:
            raise InputError(f"device {device.name!r} has no aiconfigurator_system: it is not among the measured GPUs")

        cache = Path(cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "twinserve")
        identity = repr((model, device.aiconfigurator_system, tensor_parallel, _BACKEND, _AXES))
        key = hashlib.sha256(identity.encode()).hexdigest()[:16]
        file = cache / f"{_PACKAGE}-{package_version}-{device.name}-{model.name}-tp{tensor_parallel}-{key}.json"
        tables = _load(file)
        if tables is None:
            tables = _build(model, device.aiconfigurator_system, tensor_parallel)
            _save(tables, file)

        self.extrapolations: Extrapolations = {}
        grids = {name: Grid(axes, tables[name], self.extrapolations) for name, axes in _AXES.items()}
        self._linear, self._lm_head = grids["linear"], grids["lm_head"]
        self._prefill, self._decode = grids["prefill"], grids["decode"]
        self._step_overhead_s = device.step_overhead_s
        self._description = (
            f"{_PACKAGE} {package_version}: kernel times of {_BACKEND} measured on {device.aiconfigurator_system}, "
            f"composed for {model.name}, tensor parallel {tensor_parallel}; {1e3 * device.step_overhead_s:g} ms a step "
            "beside them"
        )

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds of the step."""
        decodes = batch.decode_contexts
        tokens = len(decodes)
        for chunk, _ in batch.prefills:
            tokens += chunk
        time_s = self._step_overhead_s + self._linear.at(tokens)
        if batch.prefills:
            time_s += self._prefill.at(*as_one_prefill(batch.prefills))
        if decodes:
            time_s += self._decode.at(len(decodes), sum(decodes) / len(decodes))
        if batch.num_sampled:
            time_s += self._lm_head.at(batch.num_sampled)
        return time_s

    def warnings(self) -> list[str]:
        """Where batches went beyond the grid, and how far."""
        return [
            f"aiconfigurator: {times:,} steps were beyond the tables' {axis}, which end at {end:,.0f}; the largest had "
            f"{largest:,.0f}, {largest / end:.1f} times that. They were extrapolated linearly."
            for axis, (times, largest, end) in self.extrapolations.items()
        ]

    def describe(self) -> str:
        """Version, device and model."""
        return self._description


def _build(model: ModelShape, system: str, tensor_parallel: int) -> _Tables:
    """Ask aiconfigurator for every point of every table."""
    with _quiet("aiconfigurator_core"), tempfile.TemporaryDirectory() as folder:
        from aiconfigurator_core.sdk import EngineHandle

        (Path(folder) / "config.json").write_text(json.dumps(_huggingface_config(model)))
        try:
            engine = EngineHandle.compile(folder, system, _BACKEND, tp_size=tensor_parallel)

            def prefill_s(tokens: int, context: int) -> dict[str, float]:
                return _seconds(
                    engine.run_static_per_op(
                        batch_size=1, isl=context + tokens, prefix=context, osl=1, mode="static_ctx"
                    )[0]
                )

            def decode_s(sequences: int, context: int) -> dict[str, float]:
                return _seconds(engine.decode_step_per_op(sequences, context, 2))

            return {
                "linear": [
                    sum(
                        s
                        for op, s in prefill_s(tokens, 0).items()
                        if op not in ("context_attention", "context_logits_gemm")
                    )
                    for tokens in _TOKENS
                ],
                "lm_head": [decode_s(sequences, 1)["generation_logits_gemm"] for sequences in _DECODES],
                "prefill": [
                    prefill_s(chunk, context)["context_attention"] for chunk in _CHUNKS for context in _CONTEXTS
                ],
                "decode": [
                    decode_s(number, context)["generation_attention"]
                    for number in _DECODES
                    for context in _DECODE_CONTEXTS
                ],
            }
        # It raises what it likes (ValueError, AssertionError, KeyError, errors of its own) for shapes it does not know.
        except Exception as error:
            raise InputError(
                f"aiconfigurator has no figures for {model.name} on {system} with "
                f"tensor_parallel={tensor_parallel}: {error}"
            ) from error


def _seconds(operations: Sequence[tuple[str, float, float, str]]) -> dict[str, float]:
    """Operation -> seconds, from (name, milliseconds, energy, source)."""
    return {name: 1e-3 * time_ms for name, time_ms, _, _ in operations}


def _huggingface_config(model: ModelShape) -> dict[str, Any]:
    """The config.json that aiconfigurator reads shapes from, so that it need not know the model by name."""
    return {
        "architectures": [model.architecture],
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_model_len,
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": "bfloat16",
    }


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Hold back a library's remarks on tables that are not asked here."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _load(file: Path) -> _Tables | None:
    """Tables kept by an earlier run; None when there are none or they are damaged."""
    try:
        tables: _Tables = json.loads(file.read_text())
        for name, axes in _AXES.items():
            Grid(axes, tables[name], {})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tables


def _save(tables: _Tables, file: Path) -> None:
    """Keep tables for later runs, where the disk allows."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(tables))
        partial.replace(file)
    except OSError:
        return
