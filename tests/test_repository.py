"""What holds for every file of the repository, whoever wrote it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
ROOMS = ("platform", "experiments", "sim", "real", "kernels", "schedulers")
MODULES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))

#: Folders of one person's machine, and hosts that packages happen to be fetched from.
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:home|root|tmp|work|Users|private)/\w")
REGISTRY = re.compile(r"(?:\w+\.)*(?:pypi\.org|pythonhosted\.org|debian\.org|npmjs\.(?:org|com)|anaconda\.org)\b")


def files() -> list[Path]:
    """Every file that is, or would be, committed."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is not a git checkout, so that committed files cannot be told from others")
    return [ROOT / name for name in names.split("\0") if (ROOT / name).is_file()]


def test_no_file_names_a_folder_of_one_machine_or_a_package_registry() -> None:
    found = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{path.relative_to(ROOT)}: {hit.group()}" for hit in MACHINE_PATH.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {hit.group()}" for hit in REGISTRY.finditer(text)]
    assert not found


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_public_module_says_what_it_is(module: Path) -> None:
    assert ast.get_docstring(ast.parse((ROOT / module).read_text(encoding="utf-8")))


def test_a_module_of_more_than_500_lines_is_two_modules() -> None:
    long = [path for path in files() if path.suffix == ".py" and len(path.read_text().splitlines()) > 500]
    assert not long


def test_the_scheduler_s_only_library_is_sortedcontainers() -> None:
    allowed = sys.stdlib_module_names | {"schedulers", "sortedcontainers"}
    foreign = []
    for path in (ROOT / "schedulers").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            foreign += [f"{path.name}: {name}" for name in names if name.partition(".")[0] not in allowed]
    assert not foreign


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_composes(experiment: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert compose("config", overrides=[f"experiment={experiment}"], return_hydra_config=True)


def test_every_dependency_that_make_installs_is_locked_to_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {Requirement(line).name for line in project["dependencies"] + extras["profiles"] + extras["dev"]}
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = [Requirement(line) for line in lines if line[:1] not in ("", "#", " ")]
    assert all(str(requirement.specifier).startswith("==") for requirement in locked)
    assert {canonicalize_name(name) for name in needed} <= {canonicalize_name(pin.name) for pin in locked}


def test_the_scheduler_in_the_readme_is_the_example_that_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = (ROOT / "examples" / "shortest_prompt.py").read_text(encoding="utf-8")
    assert f"```python\n{example}```" in readme


def test_the_example_policy_runs_by_its_import_path(tmp_path: Path) -> None:
    target = "scheduler._target_=examples.shortest_prompt.ShortestPrompt"
    command = [sys.executable, "-m", "platform", target, "workload.num_requests=20", "cost=roofline"]
    done = subprocess.run([*command, f"results={tmp_path}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ShortestPrompt" in done.stdout
