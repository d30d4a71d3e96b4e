"""A real run beside its simulation."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments.composed import CONF, Composed
from experiments.fidelity import Comparison, Latencies, compare, table
from schedulers import InputError
from sim.costs import Profiled
from tests.experiments.command_line import twinserve
from tests.experiments.vllm_runs import write_meta, write_run
from tests.shared import shared
from tests.sim.conf import device, model
from tests.sim.costs.test_profiled import write_profile


def composed(*overrides: str) -> Composed:
    given = ["experiment=fidelity", *overrides]
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", given)
    keys = [override.partition("=")[0] for override in given]
    return Composed(config, {"scheduler": "chunked_prefill"}, keys)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "RTX4090" / "Llama-3.1-8B")


@pytest.fixture
def run(tmp_path: Path, profile: Path) -> Path:
    """A run whose steps took exactly as long as the profile says."""
    cost = Profiled(model=model("llama-3.1-8b"), device=device("rtx4090"), path=str(profile))
    return write_run(tmp_path / "run", cost)


def test_an_engine_that_keeps_to_the_profile_is_met_to_the_last_token(run: Path, profile: Path) -> None:
    figures = compare(composed(f"question.run={run}", f"cost.path={profile}")).figures()
    for name in ("TTFT", "TPOT", "E2E"):
        assert [figures[name][of]["error"] for of in ("mean", "P50", "P90", "P99")] == pytest.approx([0] * 4, abs=1e-6)
        assert figures[name]["pearson"] == pytest.approx(1)
        assert figures[name]["spearman"] == pytest.approx(1)
    assert figures["makespan"]["error"] == pytest.approx(0, abs=1e-6)


def test_a_slower_run_is_told_from_its_simulation(tmp_path: Path, profile: Path) -> None:
    cost = Profiled(model=model("llama-3.1-8b"), device=device("rtx4090"), path=str(profile))
    slower = write_run(tmp_path / "slower", cost, slower=1.25)
    figures = compare(composed(f"question.run={slower}", f"cost.path={profile}")).figures()
    for pair in (figures["TTFT"]["mean"], figures["TPOT"]["P99"], figures["E2E"]["P50"], figures["makespan"]):
        assert pair["error"] == pytest.approx(1 / 1.25 - 1, abs=1e-6)


def test_whether_steps_are_decided_ahead_can_be_asked(run: Path, profile: Path) -> None:
    asked = compare(composed(f"question.run={run}", f"cost.path={profile}", "question.async_scheduling=false"))
    assert asked.figures()["TTFT"]["mean"]["error"] < -0.01
    assert "steps decided one after the other" in table(asked)


def test_model_device_and_limits_are_the_runs_unless_others_are_given(run: Path, profile: Path) -> None:
    own = compare(composed(f"question.run={run}", f"cost.path={profile}")).point
    assert (own.limits.max_num_seqs, own.limits.token_budget, own.limits.num_blocks) == (4, 64, 99)
    other = compare(composed(f"question.run={run}", f"cost.path={profile}", "engine.num_blocks=50", "device=h200"))
    assert other.point.limits.num_blocks == 50
    assert "measured for RTX4090 and prices h200" in table(other)


def test_a_policy_that_goes_by_predictions_gets_them(run: Path, profile: Path) -> None:
    given = (f"question.run={run}", f"cost.path={profile}", "scheduler=srpt")
    assert len(compare(composed(*given, "predictor=oracle")).simulated.queued_s) == 24
    with pytest.raises(InputError, match="predictor=oracle"):
        compare(composed(*given))


def test_a_cluster_is_refused_by_name(run: Path, profile: Path) -> None:
    with pytest.raises(InputError, match=r"engine\.replicas=2: a measured run is of one engine"):
        compare(composed(f"question.run={run}", f"cost.path={profile}", "engine.replicas=2"))


def test_a_model_without_a_file_is_named(run: Path, profile: Path) -> None:
    write_meta(run, model="someone/Large-1T")
    with pytest.raises(InputError, match=r"of model 'large-1t', of which conf/model has no file; give one: model=NAME"):
        compare(composed(f"question.run={run}", f"cost.path={profile}"))


def test_a_block_count_that_is_not_told_is_counted_and_said_to_be(run: Path, profile: Path) -> None:
    write_meta(run, kv_cache=None)
    counted = compare(composed(f"question.run={run}", f"cost.path={profile}"))
    assert any("does not tell its KV blocks; 3,178 were counted" in warning for warning in counted.warnings)
    assert any("prompts were not found" in warning for warning in counted.warnings)


def test_latencies_count_from_the_step_at_which_the_engine_looks_into_its_mailbox() -> None:
    seen = Latencies(np.array([1.0, 2.0]), np.array([3.0, 4.5]), np.array([3.0, 8.5]), np.array([1, 5]))
    assert seen.by_name["TTFT"].tolist() == [2.0, 2.5]
    assert seen.by_name["E2E"].tolist() == [2.0, 6.5]
    assert np.isnan(seen.by_name["TPOT"][0])
    assert seen.by_name["TPOT"][1] == 1.0
    assert seen.makespan_s == 7.5


def test_the_command_prints_the_table_and_leaves_figures_requests_and_charts(
    run: Path, profile: Path, tmp_path: Path
) -> None:
    done = twinserve("experiment=fidelity", f"question.run={run}", "cost=profiled", f"cost.path={profile}",
                     f"results={tmp_path / 'out'}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TTFT P99" in done.stdout
    assert "makespan" in done.stdout
    folder = tmp_path / "out" / "fidelity" / "rtx4090-llama-3.1-8b"
    assert json.loads((folder / "fidelity.json").read_text())["figures"]["TPOT"]["mean"]["error"] < 1e-6
    with (folder / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    assert all(row["measured_e2e_s"] == row["simulated_e2e_s"] for row in rows)
    for name in ("report.html", "figures/fidelity.png", "figures/fidelity.pdf", "figures/load.png"):
        assert (folder / name).stat().st_size > 1000


def test_bad_input_is_one_line(profile: Path, tmp_path: Path) -> None:
    for override, message in (
        (f"question.run={tmp_path}/nowhere", "there is no such folder"),
        ("question.rnu=x", "rnu"),
    ):
        done = twinserve("experiment=fidelity", override, f"cost.path={profile}")
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def published(name: str) -> Comparison:
    runs = shared("data/vllm_runs")
    place = f"{name}/Llama-3.1-8B"
    return compare(composed(f"question.run={runs}/bench/{place}", f"cost.path={runs}/profiles/{place}"))


@pytest.mark.parametrize("name", ["RTX4090", "RTXPRO6000"])
def test_real_runs_are_met_within_four_and_two_percent(name: str) -> None:
    figures = published(name).figures()
    assert abs(figures["TTFT"]["mean"]["error"]) < 0.04
    for pair in (figures["TPOT"]["mean"], figures["E2E"]["mean"], figures["makespan"]):
        assert abs(pair["error"]) < 0.02
    assert figures["TTFT"]["pearson"] > 0.995
    assert figures["E2E"]["pearson"] > 0.995
