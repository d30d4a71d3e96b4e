"""`experiment=profile`: what this device takes for the parts of a step, measured through the engine, as a profile.

The profile has the layout of LLMServingSim 2.0 (`sim.costs.profile_files`). Its rows are attention and whole halves of
a layer, which our CPU kernels compute in one call each: the time of a half, without attention, is under the name of its
first product, and what that includes has rows of zero (`fused` in meta.yaml says so). Three measurements make it:

1. the parts of made-up steps, timed within whole forward passes (`real.profiler`);
2. how much longer prompts take after some idling (`sim.costs.after_idle`), each measured right after one amid work;
3. what the engine takes beside the model: input preparation and sampling, timed within steps of decodes, and the time
   from the end of a step to the start of the next while the whole engine serves bursts of requests. Scheduling, tens of
   microseconds, is in neither. The bursts also tell how long a request is on its way to the engine.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast

from experiments import storage
from experiments.composed import Composed
from experiments.config import Point, make, read_point
from experiments.profile_tables import FUSED, IDLE_MS, Pieces, Plan, encoded, powers, priced_by, shape_of, tables
from experiments.run import PROGRESS_INTERVAL_S
from experiments.sweep import versions
from experiments.workloads import WorkloadRequest, checks
from real.compute_environment import compute_environment
from schedulers import ChunkedPrefill, InputError, RequestRecord, StepRecord
from schedulers.step import BatchShape

if TYPE_CHECKING:
    from experiments.real_run import RealEngine
    from real.profiler import PartTimes, StepProfiler

#: Tokens of each prompt and output in a burst, and how long a burst may take before the next: enough for a CPU.
BURST_PROMPT, BURST_OUTPUT = 16, 40
BURST_GAP_S, BURST_S_PER_REQUEST = 1.5, 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/profile.yaml for each key."""

    folder: str | None
    rounds: int
    max_tokens: int
    max_decodes: int
    max_context: int

    def __post_init__(self) -> None:
        if self.folder is not None:
            checks.text("question.folder", self.folder)
        for key in ("rounds", "max_tokens", "max_decodes", "max_context"):
            checks.count(f"question.{key}", getattr(self, key))
        if self.max_tokens < 16 or self.max_context < 16:
            raise InputError("question.max_tokens and question.max_context must be at least 16")


def profile(composed: Composed) -> None:
    """Measure a profile, write it, and say how well it prices steps that it was not made from."""
    os.environ.update(compute_environment())  # before torch is loaded: as in the engine's own processes
    question = composed.question(Question)
    point = read_point(composed)
    if point.real is None:
        raise InputError("experiment=profile measures this machine: it needs mode=real")
    from experiments.real_run import machine

    model, device = make(composed.config.model, "model"), make(composed.config.device, "device")
    folder = Path(question.folder or f"{composed.config.results}/profiles/{device.name}/{model.name}")
    storage.prepare(folder)
    plan = Plan.of(question.max_tokens, question.max_decodes, question.max_context, point.seed)
    print(f"{len(plan.steps())} steps in {question.rounds} rounds on {machine()}", flush=True)
    numbers = powers(1, question.max_decodes)
    times, after_idle_s, rest_s = measure_parts(point, plan, question.rounds, numbers)
    files = tables(plan, times, after_idle_s, model.num_layers)
    parts = priced_by(files, model, device)
    bursts_s = sum(map(burst_s, numbers))
    print(f"bursts of requests, for the time between steps: about {bursts_s:.0f} s", flush=True)
    gap_s, arrival_s = serve_bursts(point, numbers)
    own_us = {n: 1e6 * (rest_s[n] + gap_s[n]) for n in numbers}
    overhead_us = own_us[1]
    files["per_sequence"] += [("sampler", n, max(own - overhead_us, 0.0)) for n, own in own_us.items()]
    errors = [parts.step_time(shape_of(pieces)) / sum(times[pieces]) - 1 for pieces in plan.checks]
    sizes = sorted(map(abs, errors))
    check = {
        "steps": len(errors),
        "error_mean": round(statistics.fmean(errors), 4),
        "error_p50": round(statistics.median(sizes), 4),
        "error_p90": round(sizes[int(0.9 * len(sizes))], 4),
    }
    description = {
        "hardware": device.name,
        "model": model.name,
        "machine": machine(),
        "versions": versions(),
        "engine_effective": {"dtype": point.real.dtype, "block_size": point.limits.block_size},
        "measurement_iterations": question.rounds,
        "fused": FUSED,
        "step_overhead_us": round(overhead_us, 1),
        "arrival_us": round(1e6 * arrival_s, 1),
        "check": check,
    }
    storage.write_files(folder, encoded(files, description))
    print(f"{'decodes':>8}{'model ms':>10}{'rest ms':>9}{'gap ms':>8}")
    for n in numbers:
        model_ms = 1e3 * parts.step_time(BatchShape([], [question.max_context // 4] * n, n))
        print(f"{n:>8}{model_ms:>10.2f}{1e3 * rest_s[n]:>9.2f}{1e3 * gap_s[n]:>8.2f}")
    print(f"from a request's arrival until the engine knows of it: {1e3 * arrival_s:.2f} ms")
    longest = max(IDLE_MS)
    after = ", ".join(f"{us / 1e3:.1f} ms for {tokens}" for tokens, ms, us in files["after_idle"] if ms == longest)
    print(f"longer after {longest} ms without work: {after} tokens")
    print(
        f"{check['steps']} other steps, priced by the profile: error {check['error_mean']:+.1%} in the mean, "
        f"{check['error_p50']:.1%} in the median, {check['error_p90']:.1%} in the 90th percentile"
    )
    print(f"profile: {folder}      simulate with it: device={device.name} cost=profiled cost.path={folder}")


def measure_parts(
    point: Point, plan: Plan, rounds: int, numbers: Sequence[int]
) -> tuple[dict[Pieces, PartTimes], dict[tuple[int, int], float], dict[int, float]]:
    """The times of the parts of each step, over some rounds, each in an order of its own.

    Medians, since a step is measured few times; all of them longer by as much as all steps take longer in the mean than
    in the median, for what holds a machine up now and then is part of what its steps take.

    Also the seconds that the steps of `plan.idling` take longer after idling, and those beside the model in steps of so
    many decodes.
    """
    from real.profiler import WARMING_S, PartTimes

    steps = plan.steps()
    profiler = step_profiler(point, steps)
    samples: dict[Pieces, list[PartTimes]] = {pieces: [] for pieces in steps}
    idling: dict[tuple[int, int], list[float]] = {at: [] for at in plan.idling}
    shuffle = random.Random(point.seed).shuffle
    waits_s = {at: WARMING_S + 1e-3 * at[1] for at in idling}
    progress = _Progress((rounds + 1) * len(steps), rounds * sum(waits_s.values()) + sum(map(burst_s, numbers)))
    for turn in range(rounds + 1):  # the first warms up
        shuffle(steps)
        for pieces in steps:
            part_times = profiler.time(pieces)
            if turn:
                samples[pieces].append(part_times)
            progress.step()
        for (tokens, idle_ms), measured in idling.items() if turn else ():
            measured.append(profiler.time_after_idle(plan.idling[tokens, idle_ms], 1e-3 * idle_ms))
            progress.wait(waits_s[tokens, idle_ms])
    rest_s = {n: profiler.time_rest(n) for n in numbers}
    profiler.close()
    medians = {
        pieces: PartTimes(*(statistics.median(part) for part in zip(*measured, strict=True)))
        for pieces, measured in samples.items()
    }
    after_idle_s = {at: statistics.median(measured) for at, measured in idling.items()}
    hiccups = sum(map(sum, chain(*samples.values()))) / (rounds * sum(map(sum, medians.values())))
    print(f"steps take {hiccups - 1:+.1%} more in the mean than in the median")
    return (
        {pieces: PartTimes(*(hiccups * part for part in parts)) for pieces, parts in medians.items()},
        after_idle_s,
        rest_s,
    )


def step_profiler(point: Point, steps: Collection[Pieces]) -> StepProfiler:
    """The engine of `point`, a real one, with its model loaded and room for the largest of these steps.

    Raises:
        InputError: it is not of one CPU device.
    """
    from real.config import EngineConfig
    from real.profiler import StepProfiler

    engine, block_size = cast("RealEngine", point.real), point.limits.block_size
    config = EngineConfig.from_arguments(
        model=engine.path,
        dtype=engine.dtype,
        device=engine.device,
        num_threads=engine.num_threads,
        tensor_parallel=engine.tensor_parallel,
        block_size=block_size,
        num_blocks=max(sum(-(-sum(piece) // block_size) for piece in pieces) for pieces in steps),
    )
    return StepProfiler(config, point.seed)


def serve_bursts(point: Point, numbers: Sequence[int]) -> tuple[dict[int, float], float]:
    """What the whole engine takes beside its steps, in seconds and in the median.

    It serves requests of one length that arrive together, a burst for each number.

    Returns:
        from the end of a step to the start of the next, while so many requests decode; and from the arrival of a
        request to the start of its first step, when the engine had nothing else to do.
    """
    from experiments.real_run import serve_point

    requests, at_s = [], 1.0
    for n in numbers:
        requests += [WorkloadRequest(f"{n}-{i}", at_s, BURST_PROMPT, BURST_OUTPUT) for i in range(n)]
        at_s += burst_s(n)
    burst = replace(
        point,
        label="bursts",
        policy=ChunkedPrefill,
        policy_params={},
        workload=_Listed(requests),
        limits=replace(point.limits, max_num_seqs=max(numbers)),
        keep_decisions=False,
    )
    served = serve_point(burst)
    steps = served.steps
    gaps: dict[int, list[float]] = {n: [] for n in numbers}
    for step, following in pairwise(steps):
        n = step.num_decode_tokens
        if n in gaps and not step.num_prefills and not following.num_prefills and following.num_decode_tokens == n:
            gaps[n].append(following.start_s - step.end_s)
    for n, found in gaps.items():
        if not found:
            raise InputError(
                f"question.max_decodes={max(numbers)}: in a burst of {n} requests there were never two steps of "
                f"{n} decodes; lower it, or give the engine more KV blocks (engine.num_blocks), unless its steps are "
                f"so slow that one burst meets the next"
            )
    waits_s = waits_at_idle(steps, served.requests)
    return {n: statistics.median(found) for n, found in gaps.items()}, statistics.median(waits_s)


def waits_at_idle(steps: Sequence[StepRecord], requests: Sequence[RequestRecord]) -> list[float]:
    """Seconds from each arrival that found the engine with nothing to do to the first step with a request of it.

    Args:
        steps: in order.
        requests: those of one burst arrived at the same time.
    """
    starts = [step.start_s for step in steps]
    first_s: dict[float, float] = {}
    for request in requests:
        started_s = cast("float", request.first_scheduled_s)
        first_s[request.arrival_s] = min(started_s, first_s.get(request.arrival_s, started_s))
    return [
        started_s - arrival_s
        for arrival_s, started_s in first_s.items()
        if not (before := bisect_left(starts, arrival_s)) or steps[before - 1].end_s <= arrival_s
    ]


def burst_s(number: int) -> float:
    """Seconds from the start of a burst of so many requests to that of the next."""
    return BURST_GAP_S + number * BURST_S_PER_REQUEST


@dataclass(frozen=True)
class _Listed:
    """A workload of given requests."""

    listed: list[WorkloadRequest]
    too_long: str = "error"

    def requests(self, seed: int) -> list[WorkloadRequest]:
        return self.listed

    def describe(self) -> str:
        return f"{len(self.listed)} given requests"


class _Progress:
    """Says every few seconds how far the measurement has come, and when all of it will have ended.

    Steps take as long as they take; what waits for the clock, some of it after the last step, takes `waits_s` in all.
    """

    def __init__(self, steps: int, waits_s: float) -> None:
        self._steps = steps
        self._done = 0
        self._waits_s = waits_s
        self._waited_s = 0.0
        self._start = self._said = time.monotonic()

    def wait(self, seconds: float) -> None:
        """So many of the seconds that are to be waited have passed."""
        self._waited_s += seconds

    def step(self) -> None:
        """Another step was timed."""
        self._done += 1
        now = time.monotonic()
        if now - self._said >= PROGRESS_INTERVAL_S:
            self._said = now
            step_s = (now - self._start - self._waited_s) / self._done
            left_s = step_s * (self._steps - self._done) + self._waits_s - self._waited_s
            print(f"  {self._done:,} of {self._steps:,} steps, about {left_s:.0f} s left", flush=True)
