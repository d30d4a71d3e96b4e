"""Without the real engine its tests are left out; the conftest.py of the root says so at the top of a run."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

from real.compute_environment import compute_environment

# Before torch is loaded, as in the engine's own processes: two tests at once would otherwise spin against each other.
os.environ.update(compute_environment())

# A run in a shell's background ignores Ctrl-C, and so would the scripts that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
