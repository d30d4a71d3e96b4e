"""The pages of docs/ are run: their files are written, their commands called, and their output compared.

A block ```python file=NAME is a file; a block ```console holds commands after `$ ` and what each prints, where `...`
stands for anything. All blocks of a page are run in order, in one empty folder.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.command_line import CODE, ROOT

BLOCK = re.compile(r"^```(?P<kind>python file=(?P<file>\S+)|console)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if BLOCK.search(page.read_text(encoding="utf-8")))

#: What a page calls by name, as this Python runs it.
PROGRAMS = {"twinserve": [sys.executable, "-c", CODE], "python": [sys.executable]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_s_files_and_commands_do_what_it_says(page: Path, tmp_path: Path) -> None:
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"], encoding="utf-8")
            continue
        for command in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            line, _, expected = command.partition("\n")
            printed = run(line, tmp_path)
            pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"$ {line}\n{printed}"


def run(line: str, folder: Path) -> str:
    """What a command prints, errors included."""
    program, *arguments = shlex.split(line)
    return subprocess.run(
        [*PROGRAMS.get(program, [program]), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    ).stdout
