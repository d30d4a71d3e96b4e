"""The same scenarios in another process, whose strings hash differently: does a policy decide the same there?"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

from schedulers.conformance.play import Policy, play
from schedulers.conformance.rules import BrokenRule
from schedulers.conformance.scenario import Scenario
from schedulers.errors import InputError, SchedulerError

_CODE = "from schedulers.conformance.elsewhere import serve; serve()"


class Elsewhere:
    """Plays scenarios under a policy in a process with hash seed 1 (this one's, unless given, is random).

    Raises:
        InputError: the policy cannot be found there, as when it is defined inside a function or in `__main__`.
    """

    def __init__(self, policy: Policy) -> None:
        try:
            message = pickle.dumps(policy)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(str(error)) from error
        if b"__main__" in message:
            raise InputError("it is defined in the program that was started, not in a module that can be imported")
        environment = {
            **os.environ,
            "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1",
            "PYTHONPATH": os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path),
        }
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-P", "-c", _CODE], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if refusal := self._ask(message):
            self.close()
            raise InputError(refusal[0])

    def briefs(self, scenario: Scenario) -> list[str]:
        """What each step of a scenario decides there, and the rule that broke, if one did."""
        return self._ask(pickle.dumps(scenario))

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        self.close()

    def _ask(self, message: bytes) -> list[str]:
        to, back = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        try:
            to.write(message)
            to.flush()
            answer: list[str] = pickle.load(back)  # noqa: S301 - from this very program
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise SchedulerError("the process that plays scenarios once more died: does the policy end it?") from error
        return answer


def serve() -> None:
    """Answer an `Elsewhere` until it closes the pipe: first for a policy, then for scenarios."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this, and ends it
    to = sys.stdin.buffer
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as back, contextlib.suppress(EOFError):
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a policy prints must not come between the answers
        try:
            policy = pickle.load(to)  # noqa: S301
            refusal = []
        except Exception as error:  # noqa: BLE001 - it is the policy's module that is imported here
            refusal = [f"{type(error).__name__}: {error}"]
        pickle.dump(refusal, back)
        while not refusal:
            back.flush()
            pickle.dump(briefs_of(policy, pickle.load(to)), back)  # noqa: S301


def briefs_of(policy: Policy, scenario: Scenario) -> list[str]:
    """What each step of a scenario decides; one line that says which rule broke, if one did."""
    try:
        return [str(brief) for brief in play(policy, scenario).briefs]
    except (BrokenRule, InputError) as error:
        return [str(error)]
