"""`experiment=sensitivity`: one key at a time, whatever the key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.composed import CONF, Composed
from experiments.sensitivity import Question, axes_of, variants_of
from schedulers import InputError
from tests.experiments.command_line import twinserve

SMALL = ("experiment=sensitivity", "cost=roofline", "workload.num_requests=15", "question.seeds=2", "jobs=1",
         "question.schedulers=[chunked_prefill]")  # fmt: skip


def base() -> Composed:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["cost=roofline", "engine.num_blocks=5000"])
    return Composed(config, {"scheduler": "chunked_prefill", "workload": "azure_like", "slo": "interactive"}, [])


def test_without_axes_the_token_budget_and_the_blocks_are_varied_around_what_they_are() -> None:
    point = base()
    variants = variants_of("x", point, axes_of(Question(schedulers=["x"], axes=None, seeds=1), point))
    values = {axis: [v.value for v in variants if v.axis == axis] for axis in ("scheduler.token_budget",
              "engine.num_blocks")}  # fmt: skip
    assert values == {
        "scheduler.token_budget": [512, 1024, 2048, 4096, 8192],
        "engine.num_blocks": [1250, 2500, 5000, 10000, 20000],
    }
    assert [variant.value for variant in variants if variant.is_base] == [2048, 5000]


def test_a_value_that_is_the_point_s_own_is_there_once() -> None:
    variants = variants_of("x", base(), {"scheduler.token_budget": [2048, 512, 512]})
    assert [(variant.value, variant.is_base) for variant in variants] == [(512, False), (2048, True)]


def test_a_group_is_varied_by_its_files() -> None:
    variants = variants_of("x", base(), {"workload": ["bursty"], "slo": ["none"]})
    assert [variant.value for variant in variants] == ["azure_like", "bursty", "interactive", "none"]
    assert variants[3].composed.config.slo.ttft_s is None
    with pytest.raises(InputError, match=r"there is no workload 'bursts'; there are .*bursty"):
        variants_of("x", base(), {"workload": ["bursts"]})


@pytest.mark.parametrize(
    ("axes", "named"),
    [
        ({}, "question.axes={}"),
        ([1], r"question.axes=\[1\]"),
        ({"engine.num_blocks": 3}, "question.axes.engine.num_blocks=3: it must be a list"),
        ({"seed": [1]}, "question.axes.seed"),
        ({"seed.foo": [1]}, "question.axes.seed.foo"),
        ({"mode": ["real"]}, "question.axes.mode"),
        ({"results": ["a"]}, "question.axes.results"),
    ],
)
def test_axes_of_another_kind_are_refused_by_name(axes: object, named: str) -> None:
    with pytest.raises(InputError, match=named):
        Question(schedulers=["fcfs"], axes=axes, seeds=1)  # type: ignore[arg-type]


def test_any_keys_are_varied_one_at_a_time_and_a_variant_that_fails_leaves_the_others(tmp_path: Path) -> None:
    axes = "question.axes={engine.num_blocks:[1,300],workload:[fixed]}"
    done = twinserve(*SMALL, axes, "engine.num_blocks=5000", "workload.rate=50", f"results={tmp_path}")
    assert done.returncode == 1
    assert "engine.num_blocks=1: " in done.stderr
    assert "Traceback" not in done.stderr
    results = json.loads((tmp_path / "sensitivity" / "sensitivity.json").read_text())
    assert [(result["axis"], result["value"], bool(result["error"])) for result in results] == [
        ("engine.num_blocks", 1, True), ("engine.num_blocks", 300, False), ("engine.num_blocks", 5000, False),
        ("workload", "azure_like", False), ("workload", "fixed", False),
    ]  # fmt: skip
    assert results[2]["figures"] == results[3]["figures"]  # the point itself, once
    assert results[1]["figures"]["TTFT P99"]["mean"] > results[2]["figures"]["TTFT P99"]["mean"]
    names = {path.name for path in (tmp_path / "sensitivity" / "figures").glob("*.png")}
    assert names == {"sensitivity_engine_num_blocks.png", "sensitivity_workload.png"}


@pytest.mark.parametrize("axis", ["scheduler.max_chnk", "engine.nothing"])
def test_a_key_that_nothing_takes_is_named(axis: str, tmp_path: Path) -> None:
    done = twinserve(*SMALL, f"question.axes={{{axis}:[1]}}", "workload.num_requests=2", f"results={tmp_path}")
    assert done.returncode in (1, 2)
    assert axis.partition(".")[2] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "workload").glob("*.yaml")))
def test_a_file_that_builds_on_others_is_chosen_with_all_that_it_builds_on(name: str) -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", [f"workload={name}"])
    assert base().with_choice("workload", name).config.workload == config.workload


def test_what_the_command_line_gives_of_a_group_holds_for_the_files_that_have_such_a_key() -> None:
    given = base().with_values({"workload.rate": 7.0, "workload.output.sigma": 0.5, "workload.prompt._target_": "x.Y"})
    bursty = given.with_choice("workload", "bursty").config.workload
    assert (bursty.rate, bursty.prompt._target_) == (7.0, "experiments.workloads.Percentiles")
    assert "num_users" not in bursty
    assert "rate" not in given.with_choice("workload", "closed_loop").config.workload
    assert given.with_choice("workload", "closed_loop").config.workload.output.sigma == 0.5
