"""How long the steps of this machine take at the moment, as shares of what its profile says.

On a machine that others share, the same step takes up to 40 % more from one minute to the next, and decodes, which are
bound by memory, may slow down more than prompts, which compute. A profile that was measured once is off by that, and no
simulator can know. So the machine is gauged while an experiment goes on, with made-up steps through the engine's own
runner, which know nothing of the workload; what the simulator then says "at the machine's pace" differs from the engine
by its own mistakes, and by what the machine did between two readings.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import storage
from experiments.profile import step_profiler
from experiments.profile_tables import Pieces, shape_of
from experiments.workloads import checks
from schedulers import InputError
from schedulers.step import BatchShape
from sim.costs import arrival_s
from sim.costs.interpolation import Grid
from sim.costs.profile_files import read_curves, read_meta, tensor_parallel_folder

if TYPE_CHECKING:
    from experiments.config import Point
    from sim.costs import CostModel, Profiled

#: Beside a run of the engine: the readings right before and right after it.
FILE = "pace.json"

#: What is timed: steps of a small model that chats. They lie on the grid of a default profile (`profile_tables.Plan`):
#: what is between its points has no part in the readings. They are of many sizes, for a profile holds few measurements
#: of each of its points, and one that is off should not matter much.
DECODES: list[Pieces] = [
    *(((1, context),) * n for n in (1, 2, 4, 8, 16) for context in (16, 64, 256)),
    *(((1, 1024),) * n for n in (1, 2, 4)),
]
PROMPTS: list[Pieces] = [
    *(((chunk, 0),) for chunk in (16, 24, 32, 48, 64, 96, 128, 192, 256)),
    *(((chunk, context),) for chunk, context in ((32, 64), (64, 256))),
    *(((chunk, 0), *((1, 16),) * 8) for chunk in (16, 128)),
]
#: Decodes are quicker: so often for each time that the prompts are timed, both take about as long.
DECODES_PER_PROMPT = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times as long as by the profile steps take: those of decodes alone, and those with a prompt in them."""

    decodes: float
    prompts: float

    def __post_init__(self) -> None:
        checks.positive("decodes", self.decodes)
        checks.positive("prompts", self.prompts)

    @classmethod
    def mean(cls, paces: Sequence[Pace]) -> Pace:
        """That between some readings."""
        return cls(statistics.fmean(pace.decodes for pace in paces), statistics.fmean(pace.prompts for pace in paces))

    def __str__(self) -> str:
        return f"decodes x{self.decodes:.2f}, prompts x{self.prompts:.2f}"


class AtPace:
    """Prices by another cost model, on a machine whose steps take so many times as long."""

    def __init__(self, cost: CostModel, pace: Pace) -> None:
        self._cost = cost
        self._pace = pace
        self.arrival_s = arrival_s(cost)  # no step: at any pace the same

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds of the step."""
        return self._cost.step_time(batch, idle_s) * (self._pace.prompts if batch.prefills else self._pace.decodes)

    def warnings(self) -> list[str]:
        """Those of the other."""
        return self._cost.warnings()

    def describe(self) -> str:
        """The other, and the pace."""
        return f"{self._cost.describe()}; at the machine's pace: {self._pace}"


class PaceGauge:
    """Reads the machine's pace with a model that stays loaded; between readings its threads sleep.

    All of the steps are timed in rounds, each in an order of its own, so that any two readings are of the same steps.
    Means count, for what holds a machine up now and then is part of what its steps take. Compared is what a profiler
    times, the model's parts (`real.profiler.PartTimes`): what the engine takes beside them is not in the readings.

    Attributes:
        decodes: the steps of decodes alone that it times.
        prompts: those with a prompt in them.
    """

    def __init__(self, point: Point, profile: Profiled, folder: Path, seconds: float) -> None:
        """Load the model of `point`.

        Args:
            point: a real one; its engine runs on one CPU device.
            profile: what the readings are shares of. Steps beyond what it measured are left out.
            folder: where that was read from.
            seconds: that a reading takes, up to the end of its last round.

        Raises:
            InputError: the engine is not one that can be profiled.
        """
        self._profiler = step_profiler(point, [*DECODES, *PROMPTS])
        own_s = _engine_s(folder)
        priced = {
            pieces: price_s
            for pieces in [*DECODES, *PROMPTS]
            if _is_measured(profile, pieces)
            and (price_s := profile.step_time(shape_of(pieces)) - own_s.at(len(pieces))) > 0
        }
        self.decodes = [pieces for pieces in DECODES if pieces in priced]
        self.prompts = [pieces for pieces in PROMPTS if pieces in priced]
        if not self.decodes or not self.prompts:
            raise InputError(f"{folder}: the profile has no price for decodes, or none for prompts, of a small model")
        #: Seconds of a round by the profile, which tell readings by it from those by another.
        self._priced_s = [
            DECODES_PER_PROMPT * sum(map(priced.__getitem__, self.decodes)),
            sum(map(priced.__getitem__, self.prompts)),
        ]
        self._seconds = seconds
        self._random = random.Random(point.seed)

    def read(self) -> Pace:
        """The pace of these seconds."""
        for pieces in self.decodes:  # not counted: caches and clocks have to come up
            self._profiler.time(pieces)
        taken_s = [0.0, 0.0]
        rounds = 0
        end_s = time.perf_counter() + self._seconds
        while not rounds or time.perf_counter() < end_s:
            steps = [(0, pieces) for pieces in self.decodes * DECODES_PER_PROMPT]
            steps += [(1, pieces) for pieces in self.prompts]
            self._random.shuffle(steps)
            for kind, pieces in steps:
                taken_s[kind] += sum(self._profiler.time(pieces))
            rounds += 1
        return Pace(*(taken / rounds / priced for taken, priced in zip(taken_s, self._priced_s, strict=True)))

    def keep(self, folder: Path, readings: Iterable[Pace]) -> None:
        """Write the readings around the run in `folder` beside it."""
        content = {"round_by_profile_s": self._priced_s, "readings": [asdict(pace) for pace in readings]}
        storage.write_files(folder, {FILE: (json.dumps(content, indent=2) + "\n").encode()})

    def kept(self, folder: Path) -> list[Pace]:
        """The readings around the run in `folder`; none, if they were not taken, or against another profile.

        Raises:
            InputError: the file is damaged.
        """
        file = folder / FILE
        if not file.is_file():
            return []
        try:
            content = json.loads(file.read_text())
            readings = [Pace(**reading) for reading in content["readings"]]
            return readings if content["round_by_profile_s"] == self._priced_s else []
        except (OSError, ValueError, TypeError, KeyError, InputError) as error:
            raise InputError(f"{file} is damaged ({error}); without it, the run counts as not gauged") from error

    def close(self) -> None:
        """Free the model: there is nothing more to time. What was kept can still be read."""
        self._profiler.close()
        del self._profiler


def _is_measured(profile: Profiled, pieces: Pieces) -> bool:
    """Whether the profile has the price of a step without going beyond its tables."""
    before = dict(profile.extrapolations)
    profile.step_time(shape_of(pieces))
    return profile.extrapolations == before


def _engine_s(folder: Path) -> Grid:
    """Seconds that the engine takes beside the model by the profile in `folder`, over the sequences that sample."""
    files = tensor_parallel_folder(folder, 1)
    numbers, times_us = read_curves(files, "per_sequence", "sequences", ("lm_head", "sampler"))["sampler"]
    overhead_us = read_meta(folder).get("step_overhead_us", 0.0)
    return Grid({"sequences": numbers}, [1e-6 * (overhead_us + time_us) for time_us in times_us], {})
