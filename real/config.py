"""What an engine is made of, as frozen dataclasses; every argument of `LLM` is a field of one of them."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from real.default_model import default_model
from real.plugins import find_class, policies
from schedulers import InputError, Limits, SchedulerContract


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and in which numbers.

    Attributes:
        model: a Hugging Face folder (config.json, safetensors) or a GGUF file; None: SmolLM2-135M-Instruct, if
            installed.
        tokenizer: a folder or GGUF file of another tokenizer; None: the model's own.
        skip_tokenizer: prompts are token ids, and outputs have no text; for models without a tokenizer.
        dtype: of weights, activations and KV cache: "auto", "float32", "bfloat16" or "float16".
        max_model_len: most tokens of a request, prompt and output together; None: what the model was made for.
    """

    model: str | None = None
    tokenizer: str | None = None
    skip_tokenizer: bool = False
    dtype: str = "auto"
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.model is None:
            object.__setattr__(self, "model", default_model())
        if not isinstance(self.model, str | os.PathLike):
            raise InputError(f"model={self.model!r}: it must be the path of a model folder or of a GGUF file")
        object.__setattr__(self, "model", os.fspath(self.model))
        if not Path(self.model).exists():
            raise InputError(
                f"model={self.model}: there is no such file or folder; give a Hugging Face folder or a GGUF file"
            )
        if self.tokenizer is not None and not isinstance(self.tokenizer, str | os.PathLike):
            raise InputError(
                f"tokenizer={self.tokenizer!r}: it must be the path of a folder or of a GGUF file, or None"
            )
        _check_flag("skip_tokenizer", self.skip_tokenizer)
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise InputError(f"dtype={self.dtype!r}: it must be auto, float32, bfloat16 or float16")
        _check_whole("max_model_len", self.max_model_len, optional=True)


@dataclass(frozen=True)
class CacheConfig:
    """The paged KV cache.

    Attributes:
        block_size: tokens in a KV block.
        num_blocks: KV blocks; None: as many as the memory holds, measured by the worker.
        cache_memory_bytes: memory for KV blocks on each device, bytes; None: a share of what is free, measured (on CPUs
            at most 4 GiB).
        memory_utilization: that share, above 0 and at most 1.
        prefix_caching: whether prompts that begin alike share their full blocks.
    """

    block_size: int = 16
    num_blocks: int | None = None
    cache_memory_bytes: int | None = None
    memory_utilization: float = 0.9
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        _check_whole("block_size", self.block_size)
        _check_whole("num_blocks", self.num_blocks, optional=True)
        _check_whole("cache_memory_bytes", self.cache_memory_bytes, optional=True)
        share: Any = self.memory_utilization
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise InputError(f"memory_utilization={share!r}: it must be above 0 and at most 1")
        _check_flag("prefix_caching", self.prefix_caching)


@dataclass(frozen=True)
class SchedulerConfig:
    """Which policy decides the steps, and within which bounds.

    Attributes:
        scheduler: the name of a policy ("fcfs"), an import path ("package.module.Class"), or a class.
        scheduler_params: the policy's own parameters, by name.
        token_budget: most tokens computed in a step (vLLM: max_num_batched_tokens).
        max_num_seqs: most requests that hold a slot at once.
        max_waiting: most requests that wait for a slot; what comes beyond is refused.
    """

    scheduler: type | str = "chunked_prefill"
    scheduler_params: Mapping[str, Any] = field(default_factory=dict)
    token_budget: int = 2048
    max_num_seqs: int = 256
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_num_seqs", "max_waiting"):
            _check_whole(name, getattr(self, name))
        object.__setattr__(self, "scheduler", find_class(self.scheduler, "scheduler", policies()))
        if not isinstance(self.scheduler_params, Mapping):
            raise InputError(f"scheduler_params={self.scheduler_params!r}: it must map names to values")
        object.__setattr__(self, "scheduler_params", dict(self.scheduler_params))

    def make(self, limits: Limits, seed: int) -> SchedulerContract:
        """A fresh scheduler.

        Raises:
            InputError: the policy refused its parameters; the message says what it takes.
        """
        policy = cast("type", self.scheduler)
        try:
            scheduler: SchedulerContract = policy(limits, seed=seed, **self.scheduler_params)
        except TypeError as error:
            takes = [name for name in inspect.signature(policy).parameters if name not in ("limits", "seed")]
            given = ", ".join(self.scheduler_params) or "no parameters"
            raise InputError(
                f"scheduler: {policy.__name__} cannot be made with {given}: {error}; "
                f"besides the limits it takes {', '.join(takes) or 'no parameters'}"
            ) from error
        return scheduler


@dataclass(frozen=True)
class ParallelConfig:
    """How many devices share the model, and who drives them.

    Attributes:
        tensor_parallel: workers that each hold a slice of every layer.
        executor: "one_process" (the core's own), "processes" (one a worker, on this machine), "ray" (actors, on
            several), a class or an import path; None: one_process for one worker, processes for several.
        rendezvous: where the workers meet (torch.distributed's init_method); the executor fills it in.
    """

    tensor_parallel: int = 1
    executor: type | str | None = None
    rendezvous: str = field(default="", metadata={"argument": False})

    def __post_init__(self) -> None:
        _check_whole("tensor_parallel", self.tensor_parallel)
        choice = self.executor or ("one_process" if self.tensor_parallel == 1 else "processes")
        known = {
            "one_process": "real.executors.one_process.OneProcess",
            "processes": "real.executors.processes.Processes",
            "ray": "real.executors.ray_actors.RayActors",
        }
        object.__setattr__(self, "executor", find_class(choice, "executor", known))


@dataclass(frozen=True)
class DeviceConfig:
    """What the workers compute on.

    Attributes:
        device: "cpu", "cuda", or "auto": CUDA where there is one.
        num_threads: threads of each worker on a CPU; None: an equal share of the cores.
    """

    device: str = "auto"
    num_threads: int | None = None

    def __post_init__(self) -> None:
        if self.device not in ("auto", "cpu", "cuda"):
            raise InputError(f"device={self.device!r}: it must be auto, cpu or cuda")
        _check_whole("num_threads", self.num_threads, optional=True)


@dataclass(frozen=True)
class EngineConfig:
    """A whole engine.

    Attributes:
        seed: for sampling without a seed of its own, and for policies that draw random numbers.
        in_process: run the core in the caller's process, for debugging and tests.
        keep_records: keep a record of every step and every finished request until they are asked for.
        keep_decisions: keep every decision of every step until it is asked for, so that the run can be replayed.
    """

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    seed: int = 0
    in_process: bool = False
    keep_records: bool = False
    keep_decisions: bool = False

    def __post_init__(self) -> None:
        seed: Any = self.seed
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise InputError(f"seed={seed!r}: it must be a whole number")
        for name in ("in_process", "keep_records", "keep_decisions"):
            _check_flag(name, getattr(self, name))

    @classmethod
    def from_arguments(cls, **arguments: Any) -> EngineConfig:
        """The config of an engine from arguments by name, each a field of one of the parts.

        Raises:
            InputError: an argument is unknown or impossible; the message says what would be right.
        """
        known = argument_names()
        for name in arguments:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
                raise InputError(f"unknown argument {name!r}; {hint}")
        parts: dict[str, Any] = {}
        for part, kind in _PARTS.items():
            parts[part] = kind(**{name: value for name, value in arguments.items() if known[name] == part})
        return cls(**parts, **{name: value for name, value in arguments.items() if known[name] == ""})

    def limits(self, num_blocks: int, model_len: int) -> Limits:
        """What the scheduler must keep to, given the KV blocks that fit and the model's own longest request in tokens.

        Raises:
            InputError: `max_model_len` is more than the model or the cache can hold.
        """
        wanted, block_size = self.model.max_model_len, self.cache.block_size
        if wanted is not None and wanted > model_len:
            raise InputError(f"max_model_len={wanted}: the model was made for at most {model_len} tokens")
        if wanted is not None and wanted > num_blocks * block_size:
            raise InputError(
                f"max_model_len={wanted}: the KV cache holds {num_blocks} blocks of {block_size} tokens, too few "
                f"for one such request; give the cache more memory, or lower max_model_len to {num_blocks * block_size}"
            )
        return Limits(
            token_budget=self.scheduler.token_budget,
            max_num_seqs=self.scheduler.max_num_seqs,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=wanted or model_len,
            prefix_caching=self.cache.prefix_caching,
        )


_PARTS: Mapping[str, type] = MappingProxyType(
    {
        "model": ModelConfig,
        "cache": CacheConfig,
        "scheduler": SchedulerConfig,
        "parallel": ParallelConfig,
        "device": DeviceConfig,
    }
)


def argument_names() -> dict[str, str]:
    """All arguments of an engine, each with the part of the config that it belongs to ("": the engine's own)."""
    own = {entry.name: "" for entry in dataclasses.fields(EngineConfig) if entry.name not in _PARTS}
    names = {
        entry.name: part
        for part, kind in _PARTS.items()
        for entry in dataclasses.fields(kind)
        if entry.metadata.get("argument", True)
    }
    return names | own


def _check_whole(name: str, value: object, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name}={value!r}: it must be a whole number of at least 1{', or None' if optional else ''}")


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name}={value!r}: it must be True or False")
