"""Sweeps through Hydra's launchers for clusters, here on one machine: the same points, byte for byte."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.experiments.command_line import twinserve

SMALL = (
    "experiment=sched_sweep", "cost=roofline", "workload.num_requests=20", "scheduler=fcfs,chunked_prefill",
    "workload.rate=5", "seed=0",
)  # fmt: skip

LAUNCHERS = {
    "submitit": ["hydra/launcher=submitit_local"],
    "ray": [
        "hydra/launcher=ray_cluster", "hydra.launcher.ray.init.address=local", "+hydra.launcher.ray.init.num_cpus=2",
        "+hydra.launcher.ray.init.include_dashboard=false",
    ],
}  # fmt: skip


def is_installed(name: str) -> bool:
    return find_spec(f"hydra_plugins.hydra_{name}_launcher") is not None


def points(results: Path) -> dict[str, bytes]:
    """All that the points of a sweep left."""
    files = sorted((results / "points").rglob("*.*"))
    return {str(file.relative_to(results)): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_sweep_through_a_cluster_s_launcher_makes_the_same_points_and_the_report(name: str, tmp_path: Path) -> None:
    if not is_installed(name):
        pytest.skip(f"needs hydra-{name}-launcher: pip install twinserve[cluster]")
    here, there = tmp_path / "here", tmp_path / "there"
    assert twinserve(*SMALL, f"results={here}", "jobs=1").returncode == 0
    done = twinserve(*SMALL, f"results={there}", *LAUNCHERS[name])
    assert done.returncode == 0, done.stderr
    assert f"report: {there}/sched_sweep/report.html" in done.stdout
    assert points(here) == points(there)
    assert len(list((there / "sched_sweep" / "jobs").glob("*.json"))) == 2


def test_a_point_that_fails_in_a_job_of_submitit_is_named_and_the_other_is_kept(tmp_path: Path) -> None:
    if not is_installed("submitit"):
        pytest.skip("needs hydra-submitit-launcher: pip install twinserve[cluster]")
    done = twinserve(*SMALL, "workload.rate=-1,5", "scheduler=fcfs", f"results={tmp_path}", *LAUNCHERS["submitit"])
    assert done.returncode == 1
    assert "workload.rate=-1: it must be a finite number above 0" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "points").glob("*/summary.json"))) == 1


@pytest.mark.parametrize("launcher", ["ray", "ray_cluster", "submitit_local", "submitit_slurm"])
def test_a_launcher_that_is_not_installed_is_refused_with_what_to_install(launcher: str, tmp_path: Path) -> None:
    kind = launcher.partition("_")[0]
    if is_installed(kind):
        pytest.skip(f"hydra-{kind}-launcher is installed")
    done = twinserve(*SMALL, f"results={tmp_path}", f"hydra/launcher={launcher}")
    assert done.returncode == 2
    assert f"hydra/launcher={launcher} needs hydra-{kind}-launcher" in done.stderr
    assert "pip install twinserve[cluster]" in done.stderr
