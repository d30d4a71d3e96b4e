"""Child processes that die with their parent, and whose death their parent sees at once.

A child is a fresh interpreter (nothing is forked), started without running the caller's script again, so that scripts
need no `if __name__ == "__main__"` unless they hand over classes of their own. It receives a function and its arguments
as a pickle on its standard input. Parent and child watch each other through pidfds, which become readable when a
process ends, however it ends: there is nothing to poll, to time out, or to leave behind.

This is not the multiprocessing module because that one runs the main script again in each child, and because its shared
memory has a name that outlives a killed process.
"""

from __future__ import annotations

import contextlib
import multiprocessing  # noqa: F401 - when first imported it points __mp_main__ to the script, so not later
import os
import pickle
import pickletools
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import IO, Any, cast

from setproctitle import setproctitle

from real.compute_environment import compute_environment
from schedulers import InputError

_START = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); import real.processes as p; p.run_child()"
#: The name under which a child imports its parent's script, as the multiprocessing module does.
_PARENT_SCRIPT = "__mp_main__"


class Child:
    """A running child process.

    Attributes:
        title: what process lists call it.
        pid: its process id.
        sentinel: a file descriptor that becomes readable when it ends.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: Any,
        title: str,
        pass_fds: Sequence[int] = (),
        clean_up: Path | None = None,
    ) -> None:
        """Start `function(*arguments)` in a process of its own.

        Args:
            function: of a module; its arguments are pickled.
            pass_fds: file descriptors that the child keeps, under the same numbers.
            clean_up: a folder that the child removes if its parent dies.

        Raises:
            InputError: an argument cannot be handed to another process; the message says why.
        """
        if sys.modules.get(_PARENT_SCRIPT, sys.modules["__main__"]) is not sys.modules["__main__"]:
            raise InputError(
                "the script that starts the engine is being read by one of the engine's processes, for a class defined "
                'in it: put what it does below `if __name__ == "__main__":`'
            )
        try:
            call = pickle.dumps((function, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"{title}: its arguments cannot be handed to another process ({error}); define classes at the top "
                "level of a module, or run the engine with in_process=True"
            ) from error
        script = None
        if any(argument in ("__main__", _PARENT_SCRIPT) for _, argument, _ in pickletools.genops(call)):
            script = getattr(sys.modules["__main__"], "__file__", None)
            if script is None:
                raise InputError(
                    f"{title}: a class defined in an interactive session cannot be handed to another process; put it "
                    "into a module, or run the engine with in_process=True"
                )
        self.title = title
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            env=compute_environment(),
            pass_fds=pass_fds,
            process_group=0,  # Ctrl-C is for the parent, who decides what it means
        )
        self.pid = self._process.pid
        self.sentinel = os.pidfd_open(self.pid)
        head = pickle.dumps(sys.path) + pickle.dumps((title, os.getpid(), clean_up, script))
        with contextlib.suppress(BrokenPipeError), cast("IO[bytes]", self._process.stdin) as stdin:
            stdin.write(head + call)  # a broken pipe: it died already, which whoever waits for it will see

    @property
    def is_alive(self) -> bool:
        """It has not ended."""
        return self.sentinel >= 0 and not wait_for(self.sentinel, timeout_s=0)

    @property
    def end(self) -> str:
        """How it ended, as a person would say it; waits a second for the system to tell."""
        wait_for(self.sentinel, timeout_s=1.0)
        status = os.waitid(os.P_PIDFD, self.sentinel, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return "is still running"
        if status.si_code == os.CLD_EXITED:
            return f"exited with code {status.si_status}"
        return f"was killed by {signal.Signals(status.si_status).name}"

    def stop(self, grace_s: float) -> None:
        """Wait for it to end by itself, `grace_s` seconds; then kill it, and what it started and left (Ray's agents).

        May be called again.
        """
        if self._process.returncode is not None:
            return
        try:
            wait_for(self.sentinel, timeout_s=grace_s)
        finally:  # also if Ctrl-C ends the wait
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # before its end is acknowledged, so that its id is still its own
            self._process.wait()

    def close(self) -> None:
        """Close the sentinel. May be called again."""
        if self.sentinel >= 0:
            os.close(self.sentinel)
            self.sentinel = -1


def run_child() -> None:
    """What a child runs: the other side of `Child.__init__`."""
    title, parent_pid, clean_up, script = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our parent
    setproctitle(title)
    _die_with(parent_pid, clean_up)
    if script is not None:
        _import_script(script)
    function, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301
    sys.stdin.close()
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - for the rest of its life
    function(*arguments)


def _die_with(parent_pid: int, clean_up: Path | None) -> None:
    """End this process when its parent does, from a thread that waits for nothing else."""

    def watch() -> None:
        with contextlib.suppress(ProcessLookupError):  # it was dead before we looked
            wait_for(os.pidfd_open(parent_pid))
        if clean_up is not None:
            shutil.rmtree(clean_up, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)  # this process, and what it started and would leave

    threading.Thread(target=watch, name="watch parent", daemon=True).start()


def wait_for(*fds: int, timeout_s: float | None = None) -> list[int]:
    """Sleep until one of these file descriptors is readable; returns those that are, none after `timeout_s`."""
    poll = select.poll()  # select.select refuses file descriptors from 1024 on
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)]


def _import_script(path: str) -> None:
    """Make classes of the parent's script known under the names that they have there."""
    loader = SourceFileLoader(_PARENT_SCRIPT, path)
    module = module_from_spec(cast("ModuleSpec", spec_from_loader(_PARENT_SCRIPT, loader)))
    sys.modules[_PARENT_SCRIPT] = module
    loader.exec_module(module)
    sys.modules["__main__"] = module
