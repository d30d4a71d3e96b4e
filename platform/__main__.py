"""The door: `python -m platform ...` runs twinserve's application from the repository's root.

What the standard module of this name does stays within reach: its own words (`--terse`, `nonaliased`) are answered as
it answers them, and without arguments its line is the last one printed.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERSE = {"terse", "--terse"}
NONALIASED = {"nonaliased", "--nonaliased"}
#: What an installation of twinserve brings along, by the names that are imported.
DEPENDENCIES = {
    "hydra", "joblib", "matplotlib", "numpy", "omegaconf", "pandas", "pyarrow", "simpy", "sortedcontainers", "yaml",
}  # fmt: skip


def root_first(pythonpath: str) -> str:
    """`pythonpath` with the repository's root first, so that child processes find the rooms wherever they start."""
    others = [entry for entry in pythonpath.split(os.pathsep) if entry and entry != str(ROOT)]
    return os.pathsep.join([str(ROOT), *others])


def standard_line(words: set[str]) -> str:
    """What `python -m platform` prints where the standard module answers."""
    return platform.platform(aliased=not words & NONALIASED, terse=bool(words & TERSE))


def main(arguments: list[str]) -> int:
    """Run the application with `arguments` and return its exit status."""
    words = set(arguments)
    if words and words <= TERSE | NONALIASED:
        print(standard_line(words))
        return 0
    os.environ["PYTHONPATH"] = root_first(os.environ.get("PYTHONPATH", ""))
    try:
        from experiments.app import main as application  # only now: the standard answers need nothing installed

        status = application(arguments)
    except ModuleNotFoundError as missing:
        if missing.name not in DEPENDENCIES:
            raise
        print(
            f"twinserve needs {missing.name}, which {sys.executable} does not have. `make run` installs everything "
            "into .venv (then: .venv/bin/python -m platform); for this Python: python -m pip install --editable .",
            file=sys.stderr,
        )
        status = 1
    if not arguments:
        print(standard_line(words))
    return status


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `python -m platform | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
