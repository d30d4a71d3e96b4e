"""Runs the application as a person does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def twinserve(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`twinserve ARGUMENTS`, called from `folder`."""
    return subprocess.run(
        [sys.executable, "-c", "import sys; from experiments.app import main; sys.exit(main())", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
