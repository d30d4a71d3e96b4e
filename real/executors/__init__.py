"""Executors: who owns the workers, and how a step reaches them.

OneProcess   the worker lives in the core's own process
Processes    one process a worker, on this machine; steps go out through shared memory
RayActors    one Ray actor a worker, on one machine or several
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from real.config import EngineConfig
from schedulers import InputError, SchedulerOutput, StepResult

#: Makes the worker of a rank; `real.worker.Worker` unless a test has another.
WorkerFactory = Callable[[EngineConfig, int], Any]


class Executor(Protocol):
    """All that the engine core asks of its workers.

    Made from a config alone, by which time every worker has its weights and its KV cache.

    Attributes:
        num_kv_blocks: KV blocks that every worker has.
        sentinels: file descriptors that become readable when a worker dies; `check_health` then says which.
    """

    num_kv_blocks: int
    sentinels: Sequence[int]

    def __init__(self, config: EngineConfig) -> None:
        """Start the workers. Raises InputError if the config asks for what they cannot do."""

    def execute_model(self, output: SchedulerOutput) -> StepResult:
        """Run a step on every worker; what rank 0 sampled. Raises WorkerDiedError."""

    def check_health(self) -> None:
        """Raise WorkerDiedError if a worker is dead."""

    def shutdown(self) -> None:
        """End the workers and free what they hold. May be called again."""


def default_worker(config: EngineConfig, rank: int) -> Any:
    """The real worker; it brings torch along, so it is imported where the workers live."""
    from real.worker import Worker

    return Worker(config, rank)


def worker_config(config: EngineConfig, rendezvous: str = "") -> EngineConfig:
    """The config as a worker in another process gets it: where to meet the others, and without policy and executor.

    A worker needs neither, and their classes may be of a script that it cannot import.
    """
    return replace(
        config,
        scheduler=replace(config.scheduler, scheduler="chunked_prefill", scheduler_params={}),
        parallel=replace(config.parallel, executor=None, rendezvous=rendezvous),
    )


def prepare(call_all: Callable[..., list[Any]], config: EngineConfig) -> int:
    """Load the model and allocate the KV cache on every worker.

    Args:
        call_all: calls a method of every worker, by name, and returns all results.

    Returns:
        KV blocks of each.
    """
    call_all("load")
    num_blocks = config.cache.num_blocks or min(call_all("num_kv_blocks"))
    if num_blocks < 1:
        raise InputError(
            f"the memory for the KV cache does not hold a single block of {config.cache.block_size} tokens; "
            "raise cache_memory_bytes or memory_utilization"
        )
    call_all("allocate_kv_cache", num_blocks)
    return int(num_blocks)
