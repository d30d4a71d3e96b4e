"""The worker in the engine core's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from real.config import EngineConfig
from real.executors import WorkerFactory, default_worker, prepare
from schedulers import InputError, SchedulerOutput, StepResult


class OneProcess:
    """One worker, called directly: no messages, and nothing that could die alone."""

    sentinels: Sequence[int] = ()

    def __init__(self, config: EngineConfig, make_worker: WorkerFactory = default_worker) -> None:
        if config.parallel.tensor_parallel > 1:
            raise InputError(
                f"executor='one_process' holds one worker; tensor_parallel={config.parallel.tensor_parallel} needs "
                "executor='processes' or 'ray'"
            )
        self._worker = make_worker(config, 0)
        self._execute_model = self._worker.execute_model
        self.num_kv_blocks = prepare(self._call, config)

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        return [getattr(self._worker, method)(*arguments)]

    def execute_model(self, output: SchedulerOutput) -> StepResult:
        """Run a step."""
        result: StepResult = self._execute_model(output)
        return result

    def check_health(self) -> None:
        """It is as healthy as its caller."""

    def shutdown(self) -> None:
        """Let the worker free what it holds."""
        self._worker.shutdown()
