"""A sweep: Hydra's multirun over points, what each of them leaves for the others, and one report at the end.

A point's results lie in a folder named by its content, so that a sweep that was interrupted, or one that overlaps with an
earlier one, computes only what is not there yet. Jobs may run in other processes or on other machines; all they share is the
file system. Each leaves a note of its outcome in the sweep's folder:

    sweep.json        what was asked for, and how many points there are
    jobs/0007.json    the outcome of job 7: its folder, or why it failed
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback

from experiments import run, storage
from experiments.config import read_point
from schedulers import TwinserveError

if TYPE_CHECKING:
    from omegaconf import DictConfig

SWEEP, JOBS = "sweep.json", "jobs"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one job of a sweep.

    Attributes:
        name: the point, as a person would say it.
        folder: where its results lie; "" if it failed before that was known.
        axes: what distinguishes it in the sweep.
        error: why it failed; "" if it did not.
    """

    name: str
    folder: str = ""
    axes: dict[str, Any] = field(default_factory=dict)
    error: str = ""


def run_point(config: DictConfig, choices: dict[str, str], varied: list[str]) -> None:
    """`experiment=sched_sweep`, one job: make the point unless it is there, and note the outcome.

    A point that fails does not stop the others; the report says so, and the sweep exits with 1.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    sweep, job = Path(hydra.sweep.dir), int(hydra.job.num)
    outcome = Outcome(name=hydra.job.override_dirname)
    try:
        point = read_point(config, choices, varied)
        outcome = Outcome(point.name, str(point.folder), point.axes)
        said = run.ensure(point)
    except TwinserveError as error:
        outcome = replace(outcome, error=str(error))
        said = f"{outcome.name}: FAILED: {error}"
    note = json.dumps(asdict(outcome), indent=2) + "\n"
    storage.write_files(sweep, {f"{JOBS}/{job:04}.json": note.encode()})
    total = json.loads((sweep / SWEEP).read_text())["num_points"]
    done = len(list((sweep / JOBS).glob("*.json")))
    print(f"[{done:{len(str(total))}}/{total}] {said}", flush=True)


class SweepCallback(Callback):
    """Opens a sweep's folder before its jobs start, and writes the report when all have ended."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Forget the outcomes of an earlier sweep of this folder (never its points) and say what is about to happen."""
        sweep = Path(config.hydra.sweep.dir)
        shutil.rmtree(sweep / JOBS, ignore_errors=True)
        num_points = count_points(config)
        asked = {"num_points": num_points, "command": command(), "overrides": list(config.hydra.overrides.task)}
        storage.write_files(sweep, {SWEEP: (json.dumps(asked, indent=2) + "\n").encode()})
        print(f"sweep of {num_points} points; Ctrl-C keeps what is finished, the same command goes on from there", flush=True)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write the report.

        Raises:
            SystemExit: the report could not be written, or a point failed. (Hydra turns other exceptions of callbacks into
                warnings.)
        """
        try:
            page, failed = finish(Path(config.hydra.sweep.dir))
        except TwinserveError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        for outcome in failed:
            print(f"failed: {outcome.name}: {outcome.error}", file=sys.stderr)
        if page:
            print(f"report: {page}")
        if failed:
            raise SystemExit(1)


def finish(sweep: Path) -> tuple[Path | None, list[Outcome]]:
    """Write the report of a sweep's finished points; return its page (None without any point) and the failed jobs."""
    from experiments.report import Point, RunDescription, write_report

    outcomes = [Outcome(**json.loads(note.read_text())) for note in sorted((sweep / JOBS).glob("*.json"))]
    failed = [outcome for outcome in outcomes if outcome.error]
    points = [
        Point(Path(outcome.folder), outcome.axes, storage.read_summary(Path(outcome.folder)))
        for outcome in outcomes
        if not outcome.error
    ]
    if not points:
        return None, failed
    summary, asked = points[0].summary, json.loads((sweep / SWEEP).read_text())
    description = RunDescription(
        command=asked["command"],
        config_yaml=(points[0].folder / "config.yaml").read_text(),
        cost_model=summary["cost"],
        versions=versions(),
        facts={"workload": summary["workload"]},
        failed={outcome.name: outcome.error for outcome in failed},
    )
    return write_report(sweep, points, "Schedulers against arrival rates", description), failed


def versions() -> dict[str, str]:
    """Of what decides a run's figures."""
    found = {"python": sys.version.split()[0]}
    for name in ("twinserve", "simpy", "numpy", "aiconfigurator-core"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def count_points(config: DictConfig) -> int:
    """How many jobs Hydra's basic sweeper makes of a config's sweep parameters and command line."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    swept = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides(swept + list(config.hydra.overrides.task))
    return sum(map(len, BasicSweeper.split_arguments(overrides, None)))


def command() -> str:
    """The command line that a person would type again."""
    return shlex.join(["python", "-m", "platform", *sys.argv[1:]])
