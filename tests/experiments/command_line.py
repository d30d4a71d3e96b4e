"""Runs the application as a person does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: The application, which Ctrl-C reaches even where the tests themselves run in a shell's background and ignore it.
CODE = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from experiments.app import main; sys.exit(main())"
)

ROOT = Path(__file__).resolve().parents[2]


def twinserve(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`twinserve ARGUMENTS`, called from `folder`."""
    return subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def start(*arguments: str) -> subprocess.Popen[str]:
    """`twinserve ARGUMENTS`, not waited for, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
