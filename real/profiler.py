"""Measures what the parts of a step take on this device, through the engine's own worker and model runner."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from real.config import EngineConfig
from real.input_batch import FlatBatch
from real.made_steps import made_step
from real.model_runner import ModelRunner
from real.models.decoder import Model
from real.ops import Layer
from real.sampling_params import SamplingParams
from real.worker import Worker
from schedulers.errors import InputError
from schedulers.step import BatchShape, SchedulerOutput

#: Seconds of work after which a processor's clock is as fast as it gets.
WARMING_S = 0.15


class PartTimes(NamedTuple):
    """Seconds that each part of one step took.

    Attributes:
        attention: writing to the cache and attending to it, all layers together; both depend on the requests.
        projections: the rest of the attention halves: norm, QKV projection, RoPE, output projection.
        mlp_half: norm, gate and up projection, activation and down projection, all layers together.
        ends: the rest of the forward pass: embedding, RoPE's angles, last norm.
        logits: the projection to the vocabulary, of the requests that sample.
    """

    attention: float
    projections: float
    mlp_half: float
    ends: float
    logits: float


class StepProfiler:
    """A worker whose steps are made by hand, and timed part by part.

    The parts are timed where they happen, in whole forward passes of the whole model, so that each finds the caches as
    it would find them in service; a kernel called alone, time after time, is quicker than that.
    """

    def __init__(self, config: EngineConfig, seed: int) -> None:
        """Load the model.

        Args:
            config: `config.cache.num_blocks` must be given; one device.
            seed: of the blocks that requests get, which are scattered over the cache as in service.

        Raises:
            InputError: the config cannot be profiled.
        """
        if config.parallel.tensor_parallel > 1:
            raise InputError(f"tensor_parallel={config.parallel.tensor_parallel}: a profile is measured on one device")
        self._worker = Worker(config)
        if self._worker.device.type != "cpu":
            raise InputError(
                f"device={config.device.device!r} is {self._worker.device}; only CPUs can be profiled so far"
            )
        self._num_blocks = config.cache.num_blocks or 0
        self._block_size = config.cache.block_size
        self._random = random.Random(seed)
        self._steps = 0
        self._worker.load()
        self._runner = self._worker.make_runner(self._num_blocks, _TimedRunner)

    @property
    def num_layers(self) -> int:
        """Decoder layers of the model."""
        return self._worker.model.config.num_layers

    def time(self, pieces: Sequence[tuple[int, int]]) -> PartTimes:
        """Run one step of requests that each compute some tokens over some context, and sample.

        Args:
            pieces: (tokens, context tokens) of each request.
        """
        self._steps += 1
        blocks = self._random.sample(range(self._num_blocks), self._num_blocks)
        params = SamplingParams(temperature=0)
        step = made_step(self._steps, pieces, self._block_size, params, block_ids=blocks)
        before, after = copy(self._runner.watch), self._runner.watch
        self._runner.execute_model(step)
        forget = made_step(self._steps, [], self._block_size, params, finished_ids=list(step.num_scheduled_tokens))
        self._runner.execute_model(forget)
        attention = after.attention - before.attention
        projections = after.attention_half - before.attention_half - attention
        mlp_half = after.mlp_half - before.mlp_half
        ends = after.forward - before.forward - attention - projections - mlp_half
        return PartTimes(attention, projections, mlp_half, ends, after.logits - before.logits)

    def time_after_idle(self, pieces: Sequence[tuple[int, int]], idle_s: float) -> float:
        """Seconds that the model takes longer for a step when the device had nothing to do right before."""
        start, busy_s = time.perf_counter(), 0.0
        while time.perf_counter() - start < WARMING_S:
            busy_s = sum(self.time(pieces))
        time.sleep(idle_s)
        return sum(self.time(pieces)) - busy_s

    def time_rest(self, num_decodes: int) -> float:
        """Seconds of a step of so many decodes that are spent beside the model: input preparation and sampling."""
        self._steps += 1
        params = SamplingParams(temperature=0)
        first = made_step(self._steps, [(1, self._block_size)] * num_decodes, self._block_size, params)
        ids = list(first.num_scheduled_tokens)
        self._runner.execute_model(first)
        rests = []
        for context in range(self._block_size + 1, 2 * self._block_size):  # as long as their blocks have room
            shape = BatchShape([], [context] * num_decodes, num_decodes)
            step = SchedulerOutput(0, dict.fromkeys(ids, 1), ids, [], [], {}, [], [], shape)
            before, start = copy(self._runner.watch), time.perf_counter()
            self._runner.execute_model(step)
            total, watch = time.perf_counter() - start, self._runner.watch
            rests.append(total - (watch.forward - before.forward) - (watch.logits - before.logits))
        self._runner.execute_model(made_step(self._steps, [], self._block_size, params, finished_ids=ids))
        return statistics.median(rests)

    def close(self) -> None:
        """Free what the worker holds."""
        self._worker.shutdown()


@dataclass(slots=True)
class _Watch:
    """Seconds that were spent so far, by part."""

    attention: float = 0.0
    attention_half: float = 0.0
    mlp_half: float = 0.0
    forward: float = 0.0
    logits: float = 0.0


class _TimedLayer:
    """A layer whose halves are timed."""

    def __init__(self, layer: Layer, watch: _Watch) -> None:
        self._layer = layer
        self._watch = watch

    def attend(self, step: Any, kv_cache: Tensor) -> Tensor:
        start, attended_s = time.perf_counter(), step.attend_s
        update = self._layer.attend(step, kv_cache)
        self._watch.attention_half += time.perf_counter() - start
        self._watch.attention += step.attend_s - attended_s
        return update

    def feed_forward(self, step: Any) -> Tensor:
        start = time.perf_counter()
        update = self._layer.feed_forward(step)
        self._watch.mlp_half += time.perf_counter() - start
        return update


class _TimedRunner(ModelRunner):
    """A runner whose forward pass, layers and logits are timed."""

    def __init__(self, model: Model, *rest: Any) -> None:
        super().__init__(model, *rest)
        self.watch = _Watch()
        model.layers[:] = [_TimedLayer(layer, self.watch) for layer in model.layers]

    def _forward(self, flat: FlatBatch) -> Tensor:
        start = time.perf_counter()
        hidden = super()._forward(flat)
        self.watch.forward += time.perf_counter() - start
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        start = time.perf_counter()
        logits = super()._logits(hidden)
        self.watch.logits += time.perf_counter() - start
        return logits
