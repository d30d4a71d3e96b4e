"""A sweep: Hydra's multirun over points, what each of them leaves for the others, and one report at the end.

A point's results lie in a folder named by its content, so that a sweep that was interrupted, or that overlaps with an
earlier one, computes only what is not there yet. Jobs may run in other processes or on other machines; all they share
is the file system. Each leaves a note of its outcome in the sweep's folder:

    sweep.json        what was asked for, and how many points there are
    jobs/0007.json    the outcome of job 7: its folder, or why it failed
    lock              held by the sweep that is at work in the folder
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hydra.core.override_parser.types import Override, Transformer
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import OmegaConf, flag_override

from experiments import run, storage
from experiments.composed import Composed, ctrl_c_uncovered
from experiments.config import read_point
from experiments.workloads import check_lengths
from schedulers import InputError, TwinserveError

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


def run_point(composed: Composed) -> None:
    """`experiment=sched_sweep`, one job: make the point unless it is there, and note the outcome.

    A point that fails does not stop the others; the report says so, and the sweep exits with 1.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    sweep, job = Path(hydra.sweep.dir), int(hydra.job.num)
    outcome = Outcome(" ".join(override for override in hydra.overrides.task if not override.startswith("experiment=")))
    try:
        point = read_point(composed)
        outcome = Outcome(point.name, str(point.folder), point.axes)
        said = run.ensure(point)
    except TwinserveError as error:
        outcome = replace(outcome, error=str(error))
        said = f"{outcome.name}: FAILED"
    note = json.dumps(asdict(outcome), indent=2) + "\n"
    storage.write_files(sweep, {f"{JOBS}/{job:04}.json": note.encode()})
    total = json.loads((sweep / SWEEP).read_text())["num_points"]
    done = len(list((sweep / JOBS).glob("*.json")))
    print(f"[{done:{len(str(total))}}/{total}] {said}", flush=True)


class SweepCallback(Callback):
    """Opens a sweep's folder before its jobs start, and writes the report when all have ended.

    Hydra turns exceptions of callbacks into warnings, so what goes wrong here leaves as SystemExit.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {}  # jobs in other processes get a copy; the lock stays with the process that took it

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check what all points share, forget the outcomes of an earlier sweep of this folder, say what will happen."""
        with _exit_on_error():
            leave_out_rates(config)
            overrides = parse_overrides(config)
            check_swept(overrides)
            num_points = count_points(overrides)
            point = read_point(Composed(shared_config(config, overrides), {"scheduler": "any"}, []))
            check_lengths(point.workload.requests(point.seed), point.limits.max_model_len, point.workload.too_long)
            if point.real and OmegaConf.select(config, "hydra.launcher.n_jobs") not in (None, 1):
                raise InputError("jobs must be 1 with mode=real: two engines at once would disturb each other's times")
            sweep = Path(config.hydra.sweep.dir)
            self._lock = lock(sweep)
            shutil.rmtree(sweep / JOBS, ignore_errors=True)
            asked = {"num_points": num_points, "command": command()}
            storage.write_files(sweep, {SWEEP: (json.dumps(asked, indent=2) + "\n").encode()})
            print(f"sweep of {num_points} points, {'priced by ' if point.cost else ''}{point.timing}")
            print("Ctrl-C keeps what is finished; the same command goes on from there", flush=True)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write the report and say where it lies; fail if a point did."""
        with _exit_on_error():
            page, failed = finish(Path(config.hydra.sweep.dir))
            if page:
                print(f"report: {page}")
            names_of: dict[str, list[str]] = {}
            for outcome in failed:
                names_of.setdefault(outcome.error, []).append(outcome.name)
            for error, names in names_of.items():
                others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
                print(f"error: {names[0]}{others}: {error}", file=sys.stderr)
            if failed:
                raise SystemExit(1)


@contextlib.contextmanager
def _exit_on_error() -> Iterator[None]:
    try:
        with ctrl_c_uncovered():
            yield
    except (TwinserveError, HydraException) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1 if isinstance(error, TwinserveError) and not isinstance(error, InputError) else 2) from error
    except BrokenPipeError:  # such as `... | head`
        raise SystemExit(1) from None
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(1) from error


def finish(sweep: Path) -> tuple[Path | None, list[Outcome]]:
    """Write the report of a sweep's finished points; return its page (None without any point) and the failed jobs."""
    from experiments.report import Point, RunDescription, write_report

    outcomes = [Outcome(**json.loads(note.read_text())) for note in sorted((sweep / JOBS).glob("*.json"))]
    failed = [outcome for outcome in outcomes if outcome.error]
    # By what they are: seed=0,0 is one seed.
    done = {(outcome.folder, outcome.name): outcome for outcome in outcomes if not outcome.error}
    points = [
        Point(Path(outcome.folder), outcome.axes, storage.read_summary(Path(outcome.folder)))
        for outcome in done.values()
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


def leave_out_rates(config: DictConfig) -> None:
    """Take the experiment's own rates out of what is swept, if the workload has no rate but a pace of its own."""
    params = config.hydra.sweeper.params
    if params and "workload.rate" in params and "rate" not in config.workload:
        with flag_override(params, ["readonly", "struct"], [False, False]):
            del params["workload.rate"]


def parse_overrides(config: DictConfig) -> list[Override]:
    """The sweep's parameters, those of its experiment file first, then the command line's."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    swept = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    return OverridesParser.create().parse_overrides(swept + list(config.hydra.overrides.task))


def check_swept(overrides: list[Override]) -> None:
    """Refuse to sweep what says where all points go.

    Raises:
        InputError: naming the key.
    """
    for override in overrides:
        key = override.get_key_element().lstrip("+")
        if override.is_sweep_override() and key in ("ask", "results", "path", "jobs"):
            raise InputError(f"{key} must have one value: the points of a sweep share it")


def lock(sweep: Path) -> TextIO:
    """Keep other sweeps out of the folder until the file returned is closed, by this process' death at the latest.

    Raises:
        InputError: another sweep is at work in it, or it cannot be written.
    """
    try:
        sweep.mkdir(parents=True, exist_ok=True)
        file = (sweep / "lock").open("a")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(
            f"another sweep is at work in {sweep}; wait for it, or give this one a folder for its report: "
            "hydra.sweep.dir=FOLDER (finished points are shared all the same)"
        ) from None
    except OSError as error:
        raise InputError(f"cannot write results to {sweep}: {error.strerror}; choose another folder") from error
    return file


def count_points(overrides: list[Override]) -> int:
    """How many jobs Hydra's basic sweeper makes of them."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return sum(map(len, BasicSweeper.split_arguments(overrides, None)))


def shared_config(config: DictConfig, overrides: list[Override]) -> DictConfig:
    """The config that all points share, with the first value of keys that have none of their own."""
    shared = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    for override in overrides:
        key = override.get_key_element().lstrip("+")
        if override.is_sweep_override() and OmegaConf.select(shared, key) is None:
            value = next(iter(override.sweep_iterator(transformer=Transformer.identity)))
            OmegaConf.update(shared, key, value, force_add=True)
    return shared


def command() -> str:
    """The command line that a person would type again."""
    return shlex.join(["python", "-m", "platform", *sys.argv[1:]])
