"""Prices that were paid once: the step times of a recorded run, for its replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.hardware import Device, ModelShape


class Recorded:
    """The n-th step takes what the n-th recorded step took, whatever its batch."""

    def __init__(
        self, *, model: ModelShape, device: Device, tensor_parallel: int = 1, step_times_s: Sequence[float]
    ) -> None:
        """Take the step times, in order; model, device and parallelism only appear in the description."""
        self._step_times_s = step_times_s
        self._next = 0
        self._description = (
            f"{len(step_times_s):,} recorded steps, replayed for {model.name} on {device.name}, "
            f"tensor parallel {tensor_parallel}"
        )

    @classmethod
    def from_run(cls, *, model: ModelShape, device: Device, tensor_parallel: int = 1, path: str) -> Recorded:
        """Take the step times of the run in folder `path`, from its steps.parquet.

        Raises:
            InputError: there is no such file, or it cannot be read as step records.
        """
        import pandas as pd

        file = Path(path) / "steps.parquet"
        if not file.is_file():
            raise InputError(f"no recorded steps: {file} does not exist; `path` must be the folder of a run")
        try:
            steps = pd.read_parquet(file)
            if "replica" in steps and steps["replica"].any():
                raise InputError(f"{file} is of a cluster, whose engines took their steps side by side; give one's run")
            times = [float(time) for time in steps["end_s"] - steps["start_s"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} cannot be read as step records with start_s and end_s: {error}") from error
        return cls(model=model, device=device, tensor_parallel=tensor_parallel, step_times_s=times)

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds of the next recorded step.

        Raises:
            InputError: the recording is over.
        """
        if self._next == len(self._step_times_s):
            raise InputError(
                f"the recording has {self._next:,} steps and the replay asks for one more, with {batch.num_tokens} "
                "tokens: its workload or its decisions differ from the recorded run's"
            )
        self._next += 1
        return self._step_times_s[self._next - 1]

    def warnings(self) -> list[str]:
        """None."""
        return []

    def describe(self) -> str:
        """How many steps, and of what."""
        return self._description
