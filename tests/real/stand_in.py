"""A worker without a model: it takes the place of `real.worker.Worker` behind every executor."""

from __future__ import annotations

import time
from typing import Any

from real.config import EngineConfig
from real.executors.one_process import OneProcess
from real.executors.processes import Processes
from schedulers import SchedulerOutput, StepResult

#: Tokens that the stand-in samples: letters and spaces of SmolLM2's vocabulary, never a special token.
FIRST, COUNT = 1000, 500


def token(prompt_sum: int, position: int) -> int:
    """The token that follows a prompt whose ids add up to `prompt_sum`, at this position of the output."""
    return FIRST + (prompt_sum * 31 + position * 17) % COUNT


def expected(prompt_token_ids: list[int], num_tokens: int) -> list[int]:
    """The output of the stand-in for a prompt."""
    return [token(sum(prompt_token_ids), position) for position in range(num_tokens)]


class StandInWorker:
    """Samples tokens that depend on nothing but the prompt and the position.

    Args:
        step_s: how long a step takes, seconds.
    """

    def __init__(self, config: EngineConfig, rank: int, step_s: float = 0.0) -> None:
        self.config = config
        self.rank = rank
        self.step_s = step_s
        self._sums: dict[str, int] = {}
        self._positions: dict[str, int] = {}

    def load(self) -> None: ...

    def num_kv_blocks(self) -> int:
        return 4096

    def allocate_kv_cache(self, num_blocks: int) -> None: ...

    def execute_model(self, output: SchedulerOutput) -> StepResult | None:
        if self.step_s:
            time.sleep(self.step_s)
        for request_id in output.finished_ids:
            del self._sums[request_id], self._positions[request_id]
        for new in output.new_requests:
            assert new.prompt_token_ids is not None
            self._sums[new.request_id] = sum(new.prompt_token_ids)
            self._positions[new.request_id] = 0
        sampled: dict[str, Any] = {}
        for request_id in output.sampled_ids:
            sampled[request_id] = (token(self._sums[request_id], self._positions[request_id]),)
            self._positions[request_id] += 1
        return StepResult(sampled) if self.rank == 0 else None

    def shutdown(self) -> None: ...


def slow_worker(config: EngineConfig, rank: int) -> StandInWorker:
    """A step takes 20 ms."""
    return StandInWorker(config, rank, step_s=0.02)


class ClumsyWorker(StandInWorker):
    """Fails in its third step."""

    def execute_model(self, output: SchedulerOutput) -> StepResult | None:
        if output.step == 3:
            raise RuntimeError("dropped it")
        return super().execute_model(output)


class ClumsyStandIn(OneProcess):
    """In the core's process, until its third step."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, ClumsyWorker)


class StandIn(OneProcess):
    """In the core's process."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, StandInWorker)


class SlowStandIn(OneProcess):
    """In the core's process, 20 ms a step."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, slow_worker)


class StandInProcesses(Processes):
    """In processes of their own."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, StandInWorker)


class SlowStandInProcesses(Processes):
    """In processes of their own, 20 ms a step."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, slow_worker)
