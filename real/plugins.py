"""Classes that a user names: by a short name, by an import path, or as they are."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping

import schedulers
from schedulers import InputError, Scheduler


def policies() -> dict[str, str]:
    """Import paths of the policies in `schedulers`, by the names of their modules, such as "chunked_prefill"."""
    found = {}
    for name in sorted(schedulers.__all__, key=str.lower):
        value = getattr(schedulers, name)
        if inspect.isclass(value) and issubclass(value, Scheduler) and value is not Scheduler:
            found[value.__module__.rpartition(".")[2]] = f"{value.__module__}.{name}"
    return found


def find_class(choice: type | str, argument: str, known: Mapping[str, str]) -> type:
    """The class that `choice` stands for.

    Args:
        choice: a class, a name in `known`, or an import path such as package.module.Class.
        argument: what the user calls it, for messages.
        known: import paths by short names.

    Raises:
        InputError: there is no such class; the message says what was found on the way.
    """
    if isinstance(choice, type):
        return choice
    if not isinstance(choice, str):
        raise InputError(f"{argument}={choice!r}: it must be a class, an import path, or one of {', '.join(known)}")
    module_name, _, name = known.get(choice, choice).rpartition(".")
    if not module_name:
        close = difflib.get_close_matches(choice, known, n=1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"there are {', '.join(known)}, and import paths like package.Class"
        )
        raise InputError(f"{argument}={choice!r}: {hint}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{argument}={choice!r}: there is no module {error.name!r}; it must lie in this folder or on PYTHONPATH"
        ) from error
    except Exception as error:
        raise InputError(
            f"{argument}={choice!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        classes = [
            name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module_name
        ]
        raise InputError(
            f"{argument}={choice!r}: {module_name} has no class {name!r}; it has {', '.join(sorted(classes)) or 'none'}"
        )
    return found
