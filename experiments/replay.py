"""`experiment=replay`: does the simulator decide what a recorded run decided, when it is told the same?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments import decision_log, storage
from experiments.composed import CONF, Composed
from experiments.config import Point, read_point
from experiments.workloads import checks
from schedulers import InputError, TwinserveError
from schedulers.decisions import Admission, StepDecisions
from sim.replay import replay


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside its replay.

    Attributes:
        num_steps: steps compared: all of the recorded run's, unless the policy failed in the replay.
        num_preemptions: in the recorded run, of those steps.
        num_cached_tokens: that admissions of those steps found in the prefix cache.
        differences: every decision that differs, in words, in the order of the steps.
    """

    num_steps: int
    num_preemptions: int
    num_cached_tokens: int
    differences: list[str]

    def __str__(self) -> str:
        said = (
            f"{self.num_steps:,} steps compared, with {self.num_preemptions:,} preemptions and "
            f"{self.num_cached_tokens:,} tokens found in the prefix cache: "
            f"{len(self.differences):,} differing decisions"
        )
        return f"{said}; the first:\n  {self.differences[0]}" if self.differences else said


def run_replay(composed: Composed) -> None:
    """`experiment=replay path=FOLDER`: compare, say what came of it, and fail if a decision differs.

    Raises:
        SystemExit: with status 1, if one does.
    """
    from omegaconf import OmegaConf

    if OmegaConf.is_missing(composed.config, "path"):
        raise InputError("path has no value yet; give the folder of a run with decisions: path=FOLDER")
    checks.text("path", composed.config.path)
    comparison = compare(Path(composed.config.path))
    print(comparison)
    if comparison.differences:
        raise SystemExit(1)


def compare(folder: Path) -> Comparison:
    """Replay the run in `folder` under its own policy, and compare every decision of every step.

    After a first difference the two go on from different states, and more differences follow from it.

    Raises:
        InputError: there is no such run, or it kept no decisions.
    """
    recorded = decision_log.read(folder)
    point = recorded_point(folder)
    if point.cost is None:
        raise InputError(f"{folder}: its config asks for no simulation")
    differences: list[str] = []
    num_steps = 0
    replayed = replay(recorded, point.scheduler(), point.cost)
    try:
        for there, here in zip(recorded, replayed, strict=False):
            num_steps += 1
            differences += differences_between(there, here)
    except TwinserveError as error:
        differences.append(f"step {num_steps + 1}: the replay failed: {error}")
    else:
        if num_steps < len(recorded):
            differences.append(f"step {num_steps + 1}: the replay has no such step, and the run {len(recorded)}")
    compared = recorded[:num_steps]
    return Comparison(
        num_steps,
        sum(len(step.preempted_ids) for step in compared),
        sum(admission.num_cached_tokens for step in compared for admission in step.admissions.values()),
        differences,
    )


def recorded_point(folder: Path) -> Point:
    """The point of a stored run, to be simulated at the step times that it had."""
    from omegaconf import DictConfig, OmegaConf

    config = DictConfig(OmegaConf.create(storage.read_run(folder).config_yaml))
    config.mode = {"name": "sim", "decisions": True}
    # A real run has none; here every point has some, though none matters at given step times.
    for group, name in {"device": "cpu", "router": "round_robin"}.items():
        config.setdefault(group, OmegaConf.load(CONF / group / f"{name}.yaml"))
    config.cost = {"_target_": "sim.costs.Recorded.from_run", "_convert_": "object", "path": str(folder)}
    config.results = str(folder)
    return read_point(Composed(config, {"scheduler": "recorded"}, []))


def differences_between(there: StepDecisions, here: StepDecisions) -> list[str]:
    """Each decision of a step that differs between the run (`there`) and the replay (`here`), in words."""
    pairs = {
        "computes": (_tokens(there.num_scheduled_tokens), _tokens(here.num_scheduled_tokens)),
        "samples for": (_names(list(there.sampled_token_ids)), _names(list(here.sampled_token_ids))),
        "admits": (_admitted(there.admissions), _admitted(here.admissions)),
        "appends": (_blocks(there.new_block_ids), _blocks(here.new_block_ids)),
        "preempts": (_names(there.preempted_ids), _names(here.preempted_ids)),
        "takes as ended": (_names(there.finished_ids), _names(here.finished_ids)),
    }
    return [
        f"step {there.step}: the run {verb} {said}, the simulator {replayed}"
        for verb, (said, replayed) in pairs.items()
        if said != replayed
    ]


def _tokens(scheduled: Mapping[str, int]) -> str:
    return _names([f"{request_id} ({count} tokens)" for request_id, count in scheduled.items()])


def _blocks(tables: Mapping[str, Sequence[int]]) -> str:
    return _names([f"{request_id} (blocks {list(blocks)})" for request_id, blocks in tables.items()])


def _admitted(admissions: Mapping[str, Admission]) -> str:
    told = [
        f"{request_id} ({admission.num_cached_tokens} tokens cached, blocks {list(admission.block_ids)})"
        for request_id, admission in admissions.items()
    ]
    return _names(told)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
