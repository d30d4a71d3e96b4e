"""What a point's outcome depends on, in ten hex digits."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from glob import glob
from inspect import isclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: Modules of this folder that make a run, or its files.
CODE = (
    "columns", "conservation", "decision_log", "distribution", "fairness", "metrics", "recording", "run", "storage",
    "summary", "trace",
)  # fmt: skip


#: Ends of keys whose values are files, and which ones count of a folder.
FILES = {"path": "*", "tokenizer": "tokenizer.json"}


def digest(decisive: dict[str, Any], classes: Iterable[type], timing: str) -> str:
    """Ten hex digits of a point's config, its step times, the code that makes it, and the files it names.

    `timing` says where step times come from; that of a real run names the machine, so that a run is never taken for
    one of another machine.

    Of `classes`, of those that the config names, and of all that they derive from, the code is every module of the
    folder that they lie in: what a policy imports from beside it decides as much as its own file.
    """
    from hydra.utils import get_object

    values = dotted(decisive)
    named = [get_object(str(value)) for key, value in values.items() if key.endswith("_target_")]
    hasher = hashlib.sha256(json.dumps([decisive, timing], sort_keys=True, default=str).encode())
    world = "sim" if decisive["mode"]["name"] == "sim" else "real"
    rooms = (ROOT / "schedulers", ROOT / world, ROOT / "experiments" / "workloads")
    sources = {file for room in rooms for file in room.rglob("*") if file.suffix in (".py", ".cpp", ".h")}
    sources.update(ROOT / "experiments" / f"{name}.py" for name in CODE)
    ancestors = {ancestor for kind in (*classes, *filter(isclass, named)) for ancestor in kind.__mro__}
    for module in {ancestor.__module__ for ancestor in ancestors}:
        file = getattr(sys.modules.get(module), "__file__", None)
        if file and module.partition(".")[0] not in sys.stdlib_module_names:
            sources.update(Path(file).resolve().parent.glob("*.py"))
    for file in sorted(sources):
        hasher.update(file.read_bytes())
    for key, value in values.items():
        for end, pattern in FILES.items():
            if key.endswith(end) and value:
                path = Path(str(value)).expanduser()
                # In a folder a file's name decides as well. And links are followed there, which pathlib does not do.
                names = glob(f"**/{pattern}", root_dir=path, recursive=True) if path.is_dir() else [""]  # noqa: PTH207
                for name in sorted(names):
                    if (path / name).is_file():
                        hasher.update(name.encode() + (path / name).read_bytes())
    return hasher.hexdigest()[:10]


def dotted(node: dict[str, Any], path: str = "") -> dict[str, Any]:
    """All values of a config by dotted key: the scalar ones, and those that hold others."""
    values: dict[str, Any] = {}
    for key, value in node.items():
        name = f"{path}{key}"
        values[name] = value
        if isinstance(value, dict):
            values.update(dotted(value, f"{name}."))
    return values
