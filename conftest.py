"""What every test needs, however pytest was started."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from pathlib import Path

from hypothesis import settings

# `python -m pytest` finds the repository's platform/ first, the `pytest` script the standard module. Grafted onto the
# latter, the door's modules can be imported in both; replacing it would leave two classes `uname_result`, whose pickles
# do not mix.
if not hasattr(platform, "__path__"):
    platform.__path__ = [str(Path(__file__).with_name("platform"))]

# Machines that run tests are shared: a slow example is no fault.
settings.register_profile("twinserve", deadline=None)
settings.load_profile("twinserve")


def pytest_report_header() -> str:
    """Say whether the real engine is among what is tested."""
    return "real engine: " + ("tested" if find_spec("torch") else "left out, as torch is absent (make install-real)")
