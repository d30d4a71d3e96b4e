"""`experiment=regression`: does a policy still decide what it decided when its golden files were written?"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.composed import Composed
from experiments.policy_under_test import policy_under_test
from experiments.regression.fixed_workloads import FixedCost, FixedWorkload, fixed_workloads
from experiments.regression.golden import Golden, Metric, told
from experiments.summary import summarize
from experiments.workloads import checks
from schedulers import InputError, RequestRecord, SchedulerError, StepRecord, TwinserveError
from schedulers.brief import StepBrief
from schedulers.conformance import Policy
from schedulers.decisions import StepDecisions
from sim.engine import simulate

#: Figures of `experiments.summary.summarize` that a golden keeps; counts must be equal, times within a tolerance.
METRICS = (
    "makespan_s",
    *(f"{latency}.{figure}" for latency in ("ttft_s", "tpot_s", "e2e_s") for figure in ("mean", "p50", "p99")),
    "prefix_cache_hit_share",
)
COUNTS = ("completed", "preemptions")


@dataclass(frozen=True, slots=True)
class Question:
    """Where the goldens lie, and whether to write them; see conf/experiment/regression.yaml."""

    goldens: str
    update: bool

    def __post_init__(self) -> None:
        checks.text("question.goldens", self.goldens)
        checks.flag("question.update", self.update)


def run_regression(composed: Composed) -> None:
    """`experiment=regression`: compare with the golden files, or write them.

    Raises:
        SystemExit: with status 1, if something differs.
    """
    question = composed.question(Question)
    label, policy = policy_under_test(composed, "regression")
    folder = Path(question.goldens) / re.sub(r"[^\w.=]", "-", label)
    if question.update:
        print(update(label, policy, folder))
        return
    workloads = fixed_workloads()
    reports = [report for workload in workloads if (report := compare(label, policy, workload, folder))]
    if not reports:
        print(f"{label} decides as before in all {len(workloads)} workloads ({folder})")
        return
    print(f"{label} differs from {folder} in {len(reports)} of {len(workloads)} workloads\n")
    print("\n\n".join(reports))
    print("\nIf this is meant, write it down and look at the diff: the same command with question.update=true")
    raise SystemExit(1)


def compare(label: str, policy: Policy, workload: FixedWorkload, folder: Path) -> str:
    """How a policy's run of a workload differs from its golden in `folder`, in words; empty if it does not.

    Raises:
        InputError: there is no golden, it is damaged, or it is of another policy or workload.
        SchedulerError: the policy failed.
    """
    path = folder / f"{workload.name}.txt"
    golden = _read(path)
    if golden is None:
        raise InputError(
            f"{path} does not exist: no golden of {label} in the workload {workload.name} was written yet. "
            "To take what it decides now: the same command with question.update=true"
        )
    now = run(label, policy, workload)
    for what, was, is_now in (("policy", golden.policy, now.policy), ("workload", golden.workload, now.workload)):
        if was != is_now:
            raise InputError(f"{path} is of the {what} {was}, not {is_now}; question.update=true writes it anew")
    said = [f"{workload.name} ({workload.about})"]
    for number, (then, here) in enumerate(zip_longest(golden.steps, now.steps), 1):
        if str(then) != str(here):
            said += [f"  the first step that differs is step {number}", f"    golden: {then}", f"    now:    {here}"]
            if then and here:
                said += [f"      {difference}" for difference in here.differences(then, "in the golden")]
            else:
                said.append(f"      the golden has {len(golden.steps)} steps, this run {len(now.steps)}")
            break
    beyond = [
        f"    {name} is {told(now.metrics[name].value)}, in the golden {metric}"
        for name, metric in golden.metrics.items()
        if name in now.metrics and not metric.allows(now.metrics[name].value)
    ]
    said += ["  metrics beyond their tolerance:", *beyond] if beyond else []
    return "\n".join(said) if len(said) > 1 else ""


def update(label: str, policy: Policy, folder: Path) -> str:
    """Write what a policy decides now as its goldens, keeping tolerances that were edited; say what changed.

    Raises:
        InputError: the folder cannot be written.
        SchedulerError: the policy failed; nothing is written.
    """
    files, changed = {}, []
    for workload in fixed_workloads():
        path = folder / f"{workload.name}.txt"
        now = run(label, policy, workload)
        try:
            old = _read(path)
        except InputError:  # it is damaged, which this mends
            old = None
        if old is not None:
            kept = {name: old.metrics.get(name, metric).tolerance for name, metric in now.metrics.items()}
            now = replace(now, metrics={name: Metric(m.value, kept[name]) for name, m in now.metrics.items()})
        if str(old) != str(now):
            changed.append(workload.name)
        files[path.name] = str(now).encode()
    storage.write_files(folder, files)
    return f"{folder} holds the goldens of {label}: {len(files)} files, changed: {', '.join(changed) or 'none'}"


def run(label: str, policy: Policy, workload: FixedWorkload) -> Golden:
    """What a policy decides in a workload, in the simulator, at fixed step times.

    Raises:
        SchedulerError: it failed; the message names the workload.
    """
    steps: list[StepRecord] = []
    requests: list[RequestRecord] = []
    decided: list[StepDecisions] = []
    try:
        scheduler = policy(workload.limits, seed=0)
        simulate(workload.requests(), scheduler, FixedCost(), steps.append, requests.append, decided.append)
    except TwinserveError as error:
        raise SchedulerError(f"workload {workload.name}: {error}") from error
    except (Exception, SystemExit) as error:  # where the engine takes no care: making a policy, telling it of arrivals
        where = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]  # SimPy raises a copy
        raise SchedulerError(
            f"workload {workload.name}: {label} raised {type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno})"
        ) from error
    summary = summarize(steps, requests, None)
    figures = {name: Metric(_figure(summary, name), 0.0) for name in COUNTS}
    figures |= {name: Metric(_figure(summary, name)) for name in METRICS}
    return Golden(label, f"{workload.name} {workload.digest}", [StepBrief.of(step) for step in decided], figures)


def _figure(summary: dict[str, Any], name: str) -> float | None:
    value: Any = summary
    for key in name.split("."):
        value = value[key]
    return None if value is None else float(told(value))


def _read(path: Path) -> Golden | None:
    """The golden at `path`; None if there is none.

    Raises:
        InputError: it is damaged.
    """
    try:
        return Golden.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(
            f"{path} is damaged: {error}. Restore it, or write it anew with question.update=true"
        ) from error
