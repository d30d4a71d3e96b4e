"""Cost models as conf/cost gives them, and what all have in common."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hydra.utils import instantiate

from tests.sim.conf import device, load, model, names
from tests.sim.costs.batches import batch
from tests.sim.costs.test_profiled import write_profile


@pytest.mark.parametrize("name", names("cost"))
def test_every_cost_model_in_conf_prices_a_step_and_says_what_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if name == "aiconfigurator":
        pytest.importorskip("aiconfigurator_core", reason="needs pip install twinserve[profiles]")
    config = load("cost", name)
    if name == "profiled":
        config.path = str(write_profile(tmp_path / "RTX4090" / "Llama-3.1-8B"))
    if name == "recorded":
        config.path = str(tmp_path)
        pd.DataFrame({"start_s": [0.0], "end_s": [0.5]}).to_parquet(tmp_path / "steps.parquet")
    cost = instantiate(config, model=model("llama-3.1-8b"), device=device("h200"), tensor_parallel=1)
    assert 0 < cost.step_time(batch((16, 0), decodes=[32])) < 1
    assert isinstance(cost.warnings(), list)
    assert "llama" in cost.describe().lower()
    assert "\n" not in cost.describe()


def test_importing_the_cost_models_loads_nothing_heavy() -> None:
    heavy = "{'pandas', 'numpy', 'pyarrow', 'yaml', 'aiconfigurator_core', 'torch', 'matplotlib'}"
    script = f"import sys, sim.costs, sim.hardware; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
