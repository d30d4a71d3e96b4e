"""One device's part of the engine: it loads its slice of the model, owns the KV cache, and runs steps."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
import torch

from real.config import EngineConfig
from real.made_steps import made_step
from real.memory import MemoryProbe
from real.model_runner import ModelRunner
from real.models import load_model, read_architecture
from real.parallel import Parallel
from real.results import RunnerResult
from real.sampling_params import SamplingParams
from schedulers.errors import InputError, SchedulerError
from schedulers.step import SchedulerOutput

#: Most that the KV cache takes of a CPU's memory unless it is told otherwise: that memory is everybody's.
CPU_CACHE_BYTES = 4 << 30

Runner = TypeVar("Runner", bound=ModelRunner)

#: So much of a worker's KV cache is mapped at the start on a CPU; the rest, as blocks are first used, which holds steps
#: up. In a virtual machine that took up to 4 ms for 2 MB, and one prompt in twelve took 1.25 to 2.4 times as long.
#: Mapping all would hold the start up, by about 2 s for each GiB there.
MAPPED_AT_START_BYTES = 1 << 30

#: Length of the prompt that warms a worker up.
WARM_UP_TOKENS = 64


class Worker:
    """Life of a worker: `load`, `num_kv_blocks` unless the number is given, `allocate_kv_cache`, steps, `shutdown`."""

    def __init__(self, config: EngineConfig, rank: int = 0) -> None:
        """Take the config of the whole engine; `rank` counts the workers that share the model, from 0."""
        self.config = config
        self.rank = rank
        self.device = _device(config.device.device, rank)
        self._parallel = Parallel()
        self._runner: ModelRunner | None = None

    def load(self) -> None:
        """Join the other workers and load this one's slice of the weights.

        Raises:
            InputError: the model cannot be loaded; the message says what is wrong with which file.
        """
        config = self.config
        size = config.parallel.tensor_parallel
        if self.device.type == "cpu":
            torch.set_num_threads(config.device.num_threads or max(1, len(os.sched_getaffinity(0)) // size))
        else:
            torch.cuda.set_device(self.device)
        backend = "gloo" if self.device.type == "cpu" else "nccl"
        self._parallel = Parallel.join(self.rank, size, config.parallel.rendezvous, backend=backend)
        source = str(config.model.model)  # the config has put the default in place of None
        dtype = _dtype(config.model.dtype, read_architecture(source).dtype)
        self.model = load_model(source, dtype=dtype, device=self.device, parallel=self._parallel)

    def num_kv_blocks(self) -> int:
        """How many KV blocks fit, measured: what is left for the cache after the largest step has had its memory.

        Raises:
            InputError: there is too little memory for a single block.
        """
        cache = self.config.cache
        block_bytes = self._bytes_per_block()
        if cache.cache_memory_bytes is not None:
            budget, whose = cache.cache_memory_bytes, f"cache_memory_bytes={cache.cache_memory_bytes}"
        else:
            probe = MemoryProbe(self.device)
            peak = probe.peak_bytes(self._run_largest_step)
            share = cache.memory_utilization * probe.free_bytes() / self._workers_per_memory()
            budget = int(share) - peak
            if self.device.type == "cpu":
                budget = min(budget, CPU_CACHE_BYTES)
            whose = (
                f"memory_utilization={cache.memory_utilization} of the free memory, less {peak / 1e6:.0f} MB for a "
                f"step of {self.config.scheduler.token_budget} tokens,"
            )
        most = self.config.scheduler.max_num_seqs * math.ceil(self._max_model_len() / cache.block_size)
        num_blocks = min(budget // block_bytes, most)
        if num_blocks < 1:
            raise InputError(
                f"{whose} leaves {max(budget, 0) / 1e6:.1f} MB for the KV cache, too little for one block of "
                f"{cache.block_size} tokens ({block_bytes / 1e6:.2f} MB): give it more memory, or lower token_budget"
            )
        return num_blocks

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Make the cache of `num_blocks` blocks; requests can be served from now on.

        Raises:
            InputError: the device does not have that much memory.
        """
        self._runner = self.make_runner(num_blocks, ModelRunner)
        self._warm_up(num_blocks)

    def execute_model(self, output: SchedulerOutput) -> RunnerResult | None:
        """Run one step. Every rank computes and samples alike; only the first one's result is wanted."""
        if self._runner is None:
            raise SchedulerError(
                "this worker was asked for a step before it had a KV cache: allocate_kv_cache comes first"
            )
        result = self._runner.execute_model(output)
        return result if self.rank == 0 else None

    def shutdown(self) -> None:
        """Leave the other workers."""
        self._runner = None
        self._parallel.leave()

    def make_runner(self, num_blocks: int, kind: type[Runner]) -> Runner:
        """A runner of the loaded model with a KV cache of its own.

        Raises:
            InputError: the device does not have that much memory.
        """
        shape = self.model.kv_cache_shape(num_blocks, self.config.cache.block_size)
        try:
            caches = [self._zeros(shape, num_blocks) for _ in range(self.model.config.num_layers)]
        except (MemoryError, RuntimeError) as error:  # the latter is torch's way to say that memory ran out
            needed = num_blocks * self._bytes_per_block()
            raise InputError(
                f"a KV cache of {num_blocks} blocks needs {needed / 1e9:.2f} GB, which {self.device} does not have: "
                f"give fewer num_blocks"
            ) from error
        return kind(self.model, caches, self.config.cache.block_size, self.device, self.config.seed)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _warm_up(self, num_blocks: int) -> None:
        """Run a few steps, so that a request's first one does not pay for what is made once (70 ms instead of 20)."""
        runner, block_size = cast("ModelRunner", self._runner), self.config.cache.block_size
        tokens = min(num_blocks * block_size, WARM_UP_TOKENS, self._max_model_len())
        finished: list[str] = []
        for step, piece in enumerate([(tokens, 0), (1, tokens - 1), (1, tokens - 1)]):
            output = made_step(step, [piece], block_size, SamplingParams(temperature=0), finished_ids=finished)
            runner.execute_model(output)
            finished = list(output.num_scheduled_tokens)
        runner.execute_model(made_step(0, [], block_size, SamplingParams(), finished_ids=finished))

    def _zeros(self, shape: Sequence[int], num_blocks: int) -> torch.Tensor:
        """A layer's cache. On CPUs what is beyond `MAPPED_AT_START_BYTES` is mapped once a block is used."""
        if self.device.type != "cpu":
            return torch.zeros(shape, dtype=self.model.dtype, device=self.device)
        raw = np.zeros(math.prod(shape) * self.model.dtype.itemsize, np.uint8)
        cache = torch.from_numpy(raw).view(self.model.dtype).view(*shape)
        mapped = min(num_blocks, MAPPED_AT_START_BYTES // self._bytes_per_block())
        cache.narrow(shape.index(num_blocks), 0, mapped).zero_()
        return cache

    def _run_largest_step(self) -> None:
        """Run the step that needs most memory.

        It has all the tokens and sequences that a step may have, as one long prompt and many short ones, and samples by
        the costliest rules.
        """
        scheduler, block_size = self.config.scheduler, self.config.cache.block_size
        num_seqs = min(scheduler.max_num_seqs, scheduler.token_budget)
        longest = min(scheduler.token_budget - num_seqs + 1, self._max_model_len())
        lengths = [longest] + [1] * (num_seqs - 1)
        params = SamplingParams(top_p=0.99, frequency_penalty=0.1, repetition_penalty=1.1, seed=0)
        num_blocks = sum(math.ceil(length / block_size) for length in lengths)
        step = made_step(0, [(length, 0) for length in lengths], block_size, params)
        self.make_runner(num_blocks, ModelRunner).execute_model(step)

    def _bytes_per_block(self) -> int:
        """Of all layers together, on this rank."""
        elements = math.prod(self.model.kv_cache_shape(1, self.config.cache.block_size))
        return elements * self.model.dtype.itemsize * self.model.config.num_layers

    def _max_model_len(self) -> int:
        own = self.model.config.max_model_len
        return min(self.config.model.max_model_len or own, own)

    def _workers_per_memory(self) -> int:
        """Workers that share the free memory: all of them on CPUs, where they may run on one machine."""
        return self.config.parallel.tensor_parallel if self.device.type == "cpu" else 1


def _device(name: str, rank: int) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    num_devices = torch.cuda.device_count()
    if not num_devices:
        raise InputError(f"device={name!r}: torch sees no such device here; give device='cpu'")
    return torch.device(name, rank % num_devices)


def _dtype(wanted: str, saved: str | None) -> torch.dtype:
    """The numbers to compute in; "auto" is what the weights were saved as, or bfloat16 where nobody says."""
    name = wanted if wanted != "auto" else saved or "bfloat16"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"dtype={name!r}: torch has no such type; give float32, bfloat16 or float16")
    return dtype
