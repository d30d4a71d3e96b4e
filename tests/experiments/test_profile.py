"""A profile of this machine, and with it both worlds beside each other; on a tiny model, so that it takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from experiments.profile import _Progress, waits_at_idle
from experiments.profile_tables import Pieces, Plan, priced_by, shape_of, tables
from schedulers import BatchShape, ChunkedPrefill, Limits, Request, RequestRecord, StepRecord
from sim.engine import simulate
from sim.hardware import Device, ModelShape
from sim.tokens import EOS
from tests.experiments.command_line import twinserve
from tests.experiments.real_points import SHAPE, engine, tiny_model

if TYPE_CHECKING:
    from real.profiler import PartTimes

SMALL = ("question.rounds=1", "question.max_tokens=32", "question.max_decodes=2", "question.max_context=16")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tiny_model(tmp_path_factory.mktemp("tiny"))
    return [*engine(folder), *(f"model.{key}={value}" for key, value in SHAPE.items())]


@pytest.fixture(scope="module")
def profile(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile") / "cpu" / "tiny"
    done = twinserve("experiment=profile", *settings, *SMALL, f"question.folder={folder}")
    assert done.returncode == 0, done.stderr
    assert "40 other steps, priced by the profile: error" in done.stdout
    assert f"cost.path={folder}" in done.stdout
    assert "longer after 500 ms without work: " in done.stdout
    assert "from a request's arrival until the engine knows of it: " in done.stdout
    assert "\narrival_us: " in (folder / "meta.yaml").read_text()
    assert (folder / "tp1" / "after_idle.csv").read_text().startswith("tokens,idle_ms,time_us\n16,50,")
    return folder


def test_a_measured_profile_prices_simulations(profile: Path, settings: list[str], tmp_path: Path) -> None:
    model = [item for item in settings if item.startswith("model.")]
    done = twinserve(
        "experiment=run", *model, "device=cpu", "cost=profiled", f"cost.path={profile}", "workload.num_requests=5",
        "workload=short_chats", "engine.num_blocks=64", "engine.max_model_len=256", f"results={tmp_path}",
        "workload.too_long=drop",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (summary,) = tmp_path.glob("points/*/summary.json")
    told = json.loads(summary.read_text())
    assert "profile cpu/tiny tp1: measured kernel times" in told["cost"]
    assert not [warning for warning in told["warnings"] if "was measured for" in warning]


def test_both_worlds_are_compared_policy_by_policy(profile: Path, settings: list[str], tmp_path: Path) -> None:
    arguments = [
        "experiment=compare", *settings, f"cost.path={profile}", "question.schedulers=[fcfs,chunked_prefill]",
        "question.loads=[0.2]", "question.repeats=2", "workload.num_requests=8", "workload.prompt.max_tokens=100",
        "workload.output.max_tokens=50", f"results={tmp_path}",
    ]  # fmt: skip
    done = twinserve(*arguments, "question.gauge_s=0.2")
    assert done.returncode == 0, done.stderr
    assert "[run 2 of 2] fcfs" in done.stdout
    assert "TTFT P90 at 20% load: the engine has " in done.stdout
    told = json.loads((tmp_path / "compare" / "compare.json").read_text())
    assert [item["policy"] for item in told["compared"]] == ["fcfs", "chunked_prefill"]
    assert all(len(runs) == 2 for item in told["compared"] for runs in item["engine"].values())
    assert all(0 < share < 10 for item in told["compared"] for share in item["priced"])
    assert "engine's steps, priced by the simulator" in done.stdout
    assert (tmp_path / "compare" / "figures" / "compare.png").exists()
    assert "predicted at the machine's pace: of 12 figures" in done.stdout
    assert all(len(readings) == 2 for item in told["compared"] for readings in item["paces"])
    assert all(item["at_pace"].keys() == item["engine"].keys() for item in told["compared"])
    assert "at the pace of each run's own steps, one number a run: of 12 figures" in done.stdout
    assert all(len(said) == 2 for item in told["compared"] for said in item["at_own_pace"].values())
    # Continued: runs are stored with the readings around them, but for one.
    next(tmp_path.glob("compare/run1/points/fcfs*/pace.json")).unlink()
    done = twinserve(*arguments, "question.gauge_s=0.2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(stored before)") == 4
    assert done.stdout.count("1 of 2 runs not gauged") == 1
    again = json.loads((tmp_path / "compare" / "compare.json").read_text())
    assert [item["paces"][1] for item in again["compared"]] == [item["paces"][1] for item in told["compared"]]
    assert again["compared"][0]["paces"][0] == []
    assert again["compared"][1]["engine"] == told["compared"][1]["engine"]
    done = twinserve(*arguments, "question.gauge_s=0")
    assert done.returncode == 0, done.stderr
    assert "predicted from the workload and the prices alone: of 12 figures" in done.stdout
    assert "at its pace" not in done.stdout
    assert "the machine's pace" not in done.stdout


def test_every_measured_step_is_priced_as_measured() -> None:
    profiler = pytest.importorskip("real.profiler", reason="needs torch: pip install twinserve[real]")

    def measured(pieces: Pieces) -> PartTimes:
        """Each request costs attention something of its own, so that many cost more than one of as many tokens."""
        tokens = sum(n for n, _ in pieces)
        attention = sum(3e-5 + 1e-7 * n * (n / 2 + context) for n, context in pieces)
        times: PartTimes = profiler.PartTimes(
            attention, projections=1e-3 + 2e-5 * tokens, mlp_half=5e-5 * tokens, ends=1e-4, logits=1e-5 * len(pieces)
        )
        return times

    plan = Plan.of(tokens=256, decodes=16, context=256, seed=0)
    files = tables(plan, {pieces: measured(pieces) for pieces in plan.steps()}, {(16, 50): 0.0}, num_layers=2)
    model = ModelShape(architecture="LlamaForCausalLM", **SHAPE)
    device = Device("cpu", 16 * 10**9, 1e12, 2e10, 1.0, 1.0, 0.0)
    prices = priced_by(files, model, device)
    for pieces in plan.attention.values():
        assert prices.step_time(shape_of(pieces)) == pytest.approx(sum(measured(pieces)), rel=1e-4)


@pytest.mark.parametrize(("step_s", "bursts"), [(0.01, 3), (0.06, 2)])
def test_the_way_to_the_engine_is_read_where_a_burst_met_none_of_those_before(step_s: float, bursts: int) -> None:
    # 40 tokens at 60 ms each last into the second burst, but not into the third.
    steps: list[StepRecord] = []
    records: list[RequestRecord] = []
    arrivals = [
        (Request(f"{at}-{i}", at, num_prompt_tokens=8, eos_token_id=EOS), 40)
        for at in (1.0, 2.65, 9.0)
        for i in range(2)
    ]
    limits = Limits(token_budget=64, max_num_seqs=8, num_blocks=64, block_size=16)
    simulate(arrivals, ChunkedPrefill(limits), Steady(step_s), steps.append, records.append)
    assert waits_at_idle(steps, records) == pytest.approx([0.002] * bursts)


class Steady:
    """Every step takes as long; 2 ms to the engine."""

    arrival_s = 0.002

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        return self._step_s

    def warnings(self) -> list[str]:
        return []

    def describe(self) -> str:
        return "steady"


def test_the_time_left_includes_what_waits_for_the_clock_after_the_last_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = _Progress(4, waits_s=100.0)
    progress._start -= 10 + 6  # ten seconds of waiting, and two a step
    for _ in range(2):
        progress.step()
    progress.wait(10)
    progress._said -= 10
    progress.step()
    assert capsys.readouterr().out == "  3 of 4 steps, about 92 s left\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["experiment=profile", "question.rounds=0"], "question.rounds=0: it must be a whole number"),
        (["experiment=profile", "question.max_tokens=8"], "must be at least 16"),
        (["experiment=profile", "question.size=8"], "size"),
        (["experiment=profile", "question.folder=/proc/none"], "cannot write results to /proc/none"),
        (
            ["experiment=profile", *SMALL, "question.max_decodes=4", "engine.num_blocks=4"],
            "there were never two steps of",
        ),
        (["experiment=profile", "mode=sim"], "needs mode=real"),
        (["experiment=profile", "engine.tensor_parallel=2"], "a profile is measured on one device"),
        (["experiment=compare", "cost.path=x", "question.loads=[]"], "question.loads"),
        (["experiment=compare", "cost.path=x", "question.schedulers=[fcsf]"], "there is no scheduler 'fcsf'"),
        (["experiment=compare", "cost.path=x", "mode=sim"], "it needs mode=real"),
        (["experiment=compare", "cost.path=x", "question.gauge_s=-1"], "question.gauge_s=-1"),
        (["experiment=compare"], "cost.path"),
        (
            ["experiment=compare", "cost=roofline", "workload.too_long=drop", "results=README.md"],
            "cannot write results to README.md/compare",
        ),
    ],
)
def test_what_cannot_be_measured_or_compared_is_refused(
    arguments: list[str], expected: str, settings: list[str]
) -> None:
    unused = "mode" if "mode=sim" in arguments else "mode="
    done = twinserve(*arguments, *(item for item in settings if not item.startswith(unused)))
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["experiment=profile"], ["experiment=compare", "cost=roofline"]])
def test_without_the_engines_packages_both_say_what_to_install(arguments: list[str]) -> None:
    without = "import sys; sys.modules['zmq'] = None; from experiments.app import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", without, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2, "error: mode=real needs zmq, which is not installed: pip install twinserve[real]\n",
    )  # fmt: skip
