"""Points of simulated runs that take a moment: few requests, priced by the roofline."""

from __future__ import annotations

from hydra import compose, initialize_config_dir

from experiments.composed import CONF, Composed
from experiments.config import Point, read_point


def point(*overrides: str) -> Point:
    """The point of a command line."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["cost=roofline", "workload.num_requests=40", *overrides])
    varied = [override.lstrip("+").partition("=")[0] for override in overrides]
    scheduler = next((value[10:] for value in overrides if value.startswith("scheduler=")), "chunked_prefill")
    return read_point(Composed(config, {"scheduler": scheduler}, varied))
