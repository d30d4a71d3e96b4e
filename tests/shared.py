"""Where real traces and profiles lie, for the tests that need them; they are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(os.environ.get("TWINSERVE_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def shared(name: str) -> Path:
    """The file or folder `name` of the shared data; the test is skipped, saying so, where it is absent."""
    path = _ROOT / name
    if not path.exists():
        pytest.skip(f"needs {name} of the shared data, which is absent (set TWINSERVE_SHARED to its folder)")
    return path
