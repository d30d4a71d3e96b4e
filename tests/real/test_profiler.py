"""Where the time of a step goes, by part."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from real.config import EngineConfig
from real.profiler import StepProfiler
from tests.real.tiny_model import write_tiny_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_parts_of_a_step_are_parts_of_its_time(dtype: str, tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    config = EngineConfig.from_arguments(model=str(tmp_path), dtype=dtype, device="cpu", num_blocks=16, block_size=16)
    profiler = StepProfiler(config, seed=0)
    for pieces in [((40, 0),), ((1, 30), (1, 60)), ((20, 20), (1, 5))]:
        start = time.perf_counter()
        parts = profiler.time(pieces)
        assert all(part > 0 for part in parts)
        assert sum(parts) < time.perf_counter() - start
    profiler.close()
