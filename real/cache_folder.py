"""Where what was made once on this machine is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for this package; it may not exist yet, or not be writable."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twinserve"
