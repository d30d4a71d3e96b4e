"""The machine's pace: what a gauge reads, what is kept of it, and prices at it. On a tiny model of one thread."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments import run
from experiments.compare import gauge_of, serve
from experiments.composed import CONF, Composed
from experiments.config import Point, read_point
from experiments.pace import DECODES, FILE, PROMPTS, AtPace, Pace, PaceGauge
from experiments.profile_tables import Pieces, Plan, Tables, encoded, powers, shape_of
from experiments.storage import write_files
from schedulers import InputError
from sim.costs import CostModel, Profiled
from tests.experiments.real_points import SHAPE, engine, tiny_model
from tests.sim.conf import device, model
from tests.sim.costs.batches import batch

#: Microseconds of every row of the profiles made here but the sampler's; and what the engine takes in each step beside
#: the model, a second and the sampler's rows, which no reading may contain.
ROW_US, OVERHEAD_US, SAMPLER_US = 10.0, 1e6, 777.0


def write_profile(folder: Path, row_us: float = ROW_US, decodes: int = 16) -> Path:
    """A profile whose rows all take as long, with as many decodes at most; it ends where the tiny model does."""
    tokens, contexts, numbers = powers(1, 256), [0, 16, 64, 256], powers(1, decodes)
    layers = (
        "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj", "embedding",
        "final_layernorm",
    )  # fmt: skip
    attention: list[tuple[Any, ...]] = [(chunk, kv, 0, 0, row_us) for chunk in tokens[4:] for kv in contexts]
    attention += [(0, 0, n, kv, row_us) for n in numbers for kv in contexts[1:]]
    attention += [(chunk, kv, n, 16, row_us) for chunk in (16, 256) for kv in (0, 256) for n in (1, decodes)]
    files: Tables = {
        "dense": [(layer, n, row_us) for layer in layers for n in tokens],
        "per_sequence": [
            (layer, n, us) for layer, us in (("lm_head", row_us), ("sampler", SAMPLER_US)) for n in numbers
        ],
        "attention": attention,
        "after_idle": [(16, 100, row_us)],
    }
    write_files(
        folder, encoded(files, {"model": "tiny", "hardware": "cpu", "step_overhead_us": OVERHEAD_US, "arrival_us": 1e3})
    )
    return folder


def composed(weights: Path, *overrides: str) -> Composed:
    """A comparison of the tiny model's engine."""
    shape = [f"model.{key}={value}" for key, value in SHAPE.items()]
    chats = [
        "workload.num_requests=3", "workload.prompt.max_tokens=100", "workload.output.max_tokens=40",
    ]  # fmt: skip
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["experiment=compare", *engine(weights), *shape, *chats, *overrides])
    return Composed(config, {"scheduler": "fcfs", "mode": "real"}, [])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def gauge(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> PaceGauge:
    return gauge_by(tiny, write_profile(tmp_path_factory.mktemp("profile") / "m"))


def gauge_by(tiny: Path, profile: Path) -> PaceGauge:
    made = gauge_of(composed(tiny, f"cost.path={profile}"), seconds=0.3)
    assert made is not None
    return made


def real_point(tiny: Path, results: Path) -> Point:
    return read_point(composed(tiny, "cost=roofline", f"results={results}", "mode.in_process=true", "workload.rate=20"))


def test_what_is_timed_lies_on_the_grid_of_a_default_profile() -> None:
    question = OmegaConf.load(CONF / "experiment" / "profile.yaml").question
    plan = Plan.of(question.max_tokens, question.max_decodes, question.max_context, seed=0)
    for pieces in DECODES + PROMPTS:
        assert pieces in plan.attention.values()
        assert sum(tokens for tokens, _ in pieces) in plan.dense


@pytest.mark.parametrize(
    ("step", "factor"), [(batch(decodes=[5, 9]), 2.0), (batch((32, 0)), 3.0), (batch((32, 0), decodes=[5]), 3.0)]
)
def test_at_a_pace_a_step_takes_so_many_times_as_long_idling_before_it_included(
    step: Any, factor: float, tmp_path: Path
) -> None:
    path = str(write_profile(tmp_path / "m"))
    plain = Profiled(model=model("smollm2-135m"), device=device("cpu"), path=path)
    paced = AtPace(plain, Pace(decodes=2.0, prompts=3.0))
    assert paced.arrival_s == plain.arrival_s == pytest.approx(1e-3)
    for idle_s in (0.0, 0.1):
        assert paced.step_time(step, idle_s) == pytest.approx(factor * plain.step_time(step, idle_s))
    assert plain.step_time(step, 0.1) > plain.step_time(step)
    assert paced.warnings() == plain.warnings()
    assert paced.describe().endswith("at the machine's pace: decodes x2.00, prompts x3.00")


def test_a_machine_that_takes_as_long_as_its_profile_says_reads_as_one_and_twice_as_long_as_two(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_profile(tmp_path / "m")
    gauge = gauge_by(tiny, path)
    cost = read_point(composed(tiny, f"cost.path={path}").with_choice("mode", "sim")).cost
    assert cost is not None
    beside_s = 1e-6 * (OVERHEAD_US + SAMPLER_US)
    for pace in (Pace(1.0, 1.0), Pace(2.0, 3.0)):

        def taken_s(pieces: Pieces, pace: Pace = pace, cost: CostModel = cost) -> tuple[float]:
            shape = shape_of(pieces)
            return ((cost.step_time(shape) - beside_s) * (pace.prompts if shape.prefills else pace.decodes),)

        monkeypatch.setattr(gauge._profiler, "time", taken_s)
        read = gauge.read()
        assert (read.decodes, read.prompts) == pytest.approx((pace.decodes, pace.prompts))


def test_the_dearer_a_profile_the_quicker_the_machine_is_read_to_be(
    gauge: PaceGauge, tiny: Path, tmp_path: Path
) -> None:
    # By a thousand times, so that no disturbance of the machine that runs this test can hide it.
    read, dear = gauge.read(), gauge_by(tiny, write_profile(tmp_path / "m", 1000 * ROW_US)).read()
    assert 0 < dear.decodes < read.decodes / 20
    assert 0 < dear.prompts < read.prompts / 20


def test_steps_beyond_the_profile_whose_prices_are_guesses_are_not_timed(
    gauge: PaceGauge, tiny: Path, tmp_path: Path
) -> None:
    assert {len(pieces) for pieces in gauge.decodes} == {1, 2, 4, 8, 16}
    few = gauge_by(tiny, write_profile(tmp_path / "m", decodes=2))
    assert {len(pieces) for pieces in few.decodes} == {1, 2}
    assert {len(pieces) for pieces in few.prompts} == {1}
    assert max(context for pieces in [*few.decodes, *few.prompts] for _, context in pieces) == 256


def test_what_was_read_is_kept_beside_a_run_for_the_same_profile(gauge: PaceGauge, tiny: Path, tmp_path: Path) -> None:
    readings = [Pace(1.25, 0.75), Pace(1.0, 1.5)]
    gauge.keep(tmp_path, readings)
    assert gauge.kept(tmp_path) == readings
    assert Pace.mean(readings) == Pace(1.125, 1.125)
    assert gauge.kept(tmp_path / "elsewhere") == []
    assert gauge_by(tiny, write_profile(tmp_path / "other" / "m", 2 * ROW_US)).kept(tmp_path) == []


@pytest.mark.parametrize("decodes", ['"1.0"', "null", "NaN", "Infinity", "0", "-1", "1, "])
def test_readings_that_are_no_pace_are_damaged(decodes: str, gauge: PaceGauge, tmp_path: Path) -> None:
    gauge.keep(tmp_path, [Pace(2.5, 2.5)])
    told = (tmp_path / FILE).read_text()
    for damaged in ("", "{}", "[]", told[:-20], told.replace('"decodes": 2.5', f'"decodes": {decodes}')):
        (tmp_path / FILE).write_text(damaged)
        with pytest.raises(InputError, match=r"pace\.json is damaged \(.*\); without it, the run counts as not gauged"):
            gauge.kept(tmp_path)


def test_a_run_is_gauged_when_it_is_made_and_only_then(gauge: PaceGauge, tiny: Path, tmp_path: Path) -> None:
    point = real_point(tiny, tmp_path)
    told, pace = serve(point, None, None)
    assert (pace, gauge.kept(point.folder)) == (None, [])
    told, pace = serve(point, gauge, None)
    assert told.endswith("(stored before)")
    assert (pace, gauge.kept(point.folder)) == (None, [])

    gauge.keep(point.folder, [Pace(9, 9), Pace(9, 9)])  # of a run that is damaged, and made again
    (point.folder / "steps.parquet").write_bytes(b"")
    told, pace = serve(point, gauge, Pace(1, 2))
    assert "the machine before: decodes x1.00, prompts x2.00; after: decodes " in told
    assert gauge.kept(point.folder) == [Pace(1, 2), pace]
    assert run.is_stored(point)


def test_only_the_prices_of_a_profile_are_gauged(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gauge_of(composed(tiny, "cost=roofline"), seconds=1) is None
    assert "which needs cost=profiled" in capsys.readouterr().out
    profile = write_profile(tmp_path / "m")
    (profile / "tp1").rename(profile / "tp2")
    ranks = ("engine.tensor_parallel=2", "device.link_bandwidth=1e9")
    assert gauge_of(composed(tiny, f"cost.path={profile}", *ranks), seconds=1) is None
    assert "the machine's pace is not read: tensor_parallel=2: " in capsys.readouterr().out
    assert gauge_of(composed(tiny, f"cost.path={write_profile(tmp_path / 'free' / 'm', 0.0)}"), seconds=1) is None
    assert "has no price for decodes, or none for prompts" in capsys.readouterr().out


def test_a_closed_gauge_holds_no_model_and_still_knows_what_was_kept(tiny: Path, tmp_path: Path) -> None:
    closed = gauge_by(tiny, write_profile(tmp_path / "m"))
    model = weakref.ref(closed._profiler._worker.model)
    closed.keep(tmp_path, [Pace(1, 2)])
    closed.close()
    gc.collect()
    assert model() is None
    assert closed.kept(tmp_path) == [Pace(1, 2)]
