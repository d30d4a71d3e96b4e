"""Tests run alike under `python -m pytest`, which finds the package first, and the `pytest` script, which does not."""

from __future__ import annotations

import pickle
import platform
import sys
from pathlib import Path
from platform import __main__ as door

import pytest

from tests.platform_door.process import ROOT, run

BY_SCRIPT = [Path(sys.executable).with_name("pytest")]
BY_MODULE = [sys.executable, "-m", "pytest"]


def test_the_door_s_module_is_the_repository_s_and_shares_the_functions_of_platform() -> None:
    assert Path(door.__file__) == ROOT / "platform" / "__main__.py"
    assert door.platform is platform
    assert pickle.loads(pickle.dumps(platform.uname())) == platform.uname()


@pytest.mark.parametrize("pytest_itself", [BY_SCRIPT, BY_MODULE], ids=["script", "module"])
def test_pytest_can_be_started_either_way(pytest_itself: list[str | Path]) -> None:
    inner = Path(__file__).relative_to(ROOT)
    done = run(*pytest_itself, "-q", "-p", "no:cacheprovider", "-k", "repository_s", inner)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
