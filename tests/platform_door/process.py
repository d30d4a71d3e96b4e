"""Start a Python as a person would: from a folder, with nothing inherited that changes where modules are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `command` in `cwd` to its end, at most a minute, and return its exit code and what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    return subprocess.run(command, cwd=cwd, env=inherited, capture_output=True, text=True, timeout=60, check=False)


def output_of(*arguments: str, cwd: Path = ROOT) -> str:
    """What this Python prints when it is started with `arguments` in `cwd`; the test fails if it fails."""
    done = run(sys.executable, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout
