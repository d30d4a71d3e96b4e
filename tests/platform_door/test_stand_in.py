"""In the repository's root, `import platform` gives the package, and nobody notices."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

import pytest

from tests.platform_door.process import ROOT, output_of

PUBLIC_NAMES = "import json, platform; print(json.dumps([name for name in dir(platform) if name[0] != '_']))"


def standard_names() -> set[str]:
    """Every public name of the standard module: -I keeps the root off the path."""
    return set(json.loads(output_of("-I", "-c", PUBLIC_NAMES)))


def test_the_root_gives_the_package_and_other_folders_the_standard_module(tmp_path: Path) -> None:
    show = "import platform; print(platform.__file__)"
    assert Path(output_of("-c", show).strip()) == ROOT / "platform" / "__init__.py"
    assert Path(output_of("-c", show, cwd=tmp_path).strip()).name == "platform.py"


def test_the_package_has_the_public_names_of_the_standard_module_and_no_other() -> None:
    assert set(json.loads(output_of("-c", PUBLIC_NAMES))) == standard_names()


def test_no_module_of_the_package_has_the_name_of_a_standard_attribute() -> None:
    modules = {path.stem for path in (ROOT / "platform").iterdir()}
    assert not modules & standard_names()


def test_the_functions_answer_as_the_standard_ones_do() -> None:
    ask = "import platform as p; print(p.platform(), p.uname(), p.python_version(), p.freedesktop_os_release())"
    assert output_of("-c", ask) == output_of("-I", "-c", ask)


def test_uname_pickles_within_the_root() -> None:
    again = "import pickle, platform as p; print(pickle.loads(pickle.dumps(p.uname())) == p.uname())"
    assert output_of("-c", again) == "True\n"


@pytest.mark.parametrize(("writer", "reader"), [(["-c"], ["-I", "-c"]), (["-I", "-c"], ["-c"])], ids=["out", "in"])
def test_a_pickle_of_uname_passes_between_the_package_and_the_standard_module(
    writer: list[str], reader: list[str], tmp_path: Path
) -> None:
    pickled = tmp_path / "uname.pickle"
    open_it = f"import pickle, pathlib, platform; path = pathlib.Path({str(pickled)!r}); "
    output_of(*writer, open_it + "path.write_bytes(pickle.dumps(platform.uname()))")
    read = output_of(*reader, open_it + "print(pickle.loads(path.read_bytes()) == platform.uname())")
    assert read == "True\n"


def test_a_patch_reaches_the_module_s_own_calls() -> None:
    patched = """
from unittest import mock
import platform
with mock.patch("platform.system", return_value="Plan 9"):
    print(platform.system())
with mock.patch("platform.uname", return_value=platform.uname()._replace(system="Plan 9")):
    print(platform.system())
print(platform.system() == "Plan 9")
"""
    assert output_of("-c", patched) == "Plan 9\nPlan 9\nFalse\n"


def test_the_package_needs_the_standard_library_alone() -> None:
    assert output_of("-S", "-c", "import platform; print(bool(platform.platform()))") == "True\n"
    assert _imported(ROOT / "platform" / "__init__.py") == {"os", "importlib.machinery"}


@pytest.mark.parametrize("library", ["numpy", "pandas", "pyarrow", "matplotlib", "simpy", "hydra", "torch", "ray"])
def test_a_library_can_be_imported_from_the_root(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; it belongs to another extra")
    assert output_of("-c", f"import {library}, platform; print(bool(platform.machine()))") == "True\n"


@pytest.mark.parametrize("module", [["pip", "--version"], ["pip", "list"], ["venv", "--help"], ["sysconfig"]])
def test_a_tool_can_be_run_from_the_root(module: list[str]) -> None:
    if importlib.util.find_spec(module[0]) is None:
        pytest.skip(f"{module[0]} is not installed in this environment")
    assert output_of("-m", *module)


def _imported(path: Path) -> set[str]:
    """The modules that the file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
