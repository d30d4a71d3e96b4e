"""Measured prices where there are any, and a formula where there are none."""

from __future__ import annotations

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.costs.aiconfigurator import AIConfigurator
from sim.costs.cost_model import CostModel
from sim.costs.roofline import Roofline
from sim.hardware import Device, ModelShape


class Auto:
    """Prices with aiconfigurator where it is installed and has figures for model and device, else by roofline."""

    def __init__(self, *, model: ModelShape, device: Device, tensor_parallel: int = 1) -> None:
        """Choose.

        Raises:
            InputError: neither can price, for example because tensor_parallel does not divide the heads.
        """
        self._chosen: CostModel
        try:
            self._chosen = AIConfigurator(model=model, device=device, tensor_parallel=tensor_parallel)
            self._reason = "it is installed and has figures for this model and device"
        except InputError as error:
            self._chosen = Roofline(model=model, device=device, tensor_parallel=tensor_parallel)
            self._reason = str(error)

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds of the step, from the chosen model."""
        return self._chosen.step_time(batch, idle_s)

    def warnings(self) -> list[str]:
        """Those of the chosen model."""
        return self._chosen.warnings()

    def describe(self) -> str:
        """The chosen model, and why it was chosen."""
        return f"{self._chosen.describe()} (chosen because: {self._reason})"
