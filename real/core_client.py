"""The front's side of the engine core: in a process of its own, or in the caller's."""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar, cast

import msgspec
import zmq

from real.config import EngineConfig
from real.core import EngineCore
from real.core_process import run_core
from real.errors import EngineDeadError
from real.messages import Connected, Failed, Hello, Ready, Shutdown, ToCore, ToFront
from real.processes import Child
from schedulers import InputError, TwinserveError

#: How long the core may take to finish its step and end when it is told to.
_GRACE_S = 5.0
#: How long after the core's death its last messages may still arrive.
_LAST_WORDS_MS = 50
#: Most bytes in the path of a Unix socket.
_MAX_SOCKET_PATH = 107

_Message = TypeVar("_Message", Connected, Ready)


class CoreClient(Protocol):
    """All that a front asks of the core. Any thread may `send`, while one other is in `receive`."""

    def wait_until_ready(self) -> Ready:
        """Block until the model is loaded. Raises InputError or EngineDeadError if it cannot be."""

    def send(self, message: ToCore) -> None:
        """Send a message on its way; does not wait. Raises EngineDeadError."""

    def receive(self) -> list[ToFront]:
        """All messages that have come, at least one; blocks until then. Raises EngineDeadError, now and ever after."""

    def shutdown(self, grace_s: float = 5.0) -> None:
        """End the core and free everything; wakes a `receive` in another thread. May be called again.

        Args:
            grace_s: how long the core may take to finish its step.
        """


def start_core(config: EngineConfig) -> CoreClient:
    """Start the core that `config` describes."""
    return InProcessCore(config) if config.in_process else ProcessCore(config)


class InProcessCore:
    """The core in the caller's process: `receive` runs one step. For debugging and tests."""

    def __init__(self, config: EngineConfig) -> None:
        self.core = EngineCore(config)
        #: Held during a step, which a shutdown from another thread must not disturb.
        self._stepping = threading.Lock()
        self._inbox: deque[ToCore] = deque()
        self._news = threading.Event()
        self._answers: list[ToFront] = []
        self._error: EngineDeadError | None = None

    def wait_until_ready(self) -> Ready:
        """It is."""
        return self.core.ready

    def send(self, message: ToCore) -> None:
        """Put a message where the next `receive` finds it."""
        if self._error is not None:
            raise self._error
        self._inbox.append(message)
        self._news.set()

    def receive(self) -> list[ToFront]:
        """Run steps until there is something to tell."""
        while not self._answers:
            if self._error is None and not self.core.has_work:
                self._news.wait()
            with _without_interrupts(), self._stepping:
                self._answers += self._turn()
        answers, self._answers = self._answers, []
        return answers

    def shutdown(self, grace_s: float = 5.0) -> None:
        """Free what the worker holds, once its step is done."""
        self._error = self._error or EngineDeadError("the engine was shut down")
        self._news.set()
        with self._stepping:
            self.core.shutdown()

    def _turn(self) -> list[ToFront]:
        """Hand over what has come, and run a step; a core that fails in it is of no use after that."""
        if self._error is not None:
            raise self._error
        self._news.clear()
        messages = [self._inbox.popleft() for _ in range(len(self._inbox))]
        try:
            return self.core.turn(messages)
        except Exception as error:
            said = str(error) if isinstance(error, TwinserveError) else f"{type(error).__name__}: {error}"
            self._error = EngineDeadError(f"the engine core has failed: {said}")
            raise self._error from error


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back: a step cut short would leave blocks that the prefix cache finds and nobody has computed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread alone
        return
    pending: list[FrameType | None] = []
    usual = signal.signal(signal.SIGINT, lambda _, frame: pending.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if pending and callable(usual):
        usual(signal.SIGINT, pending[0])


class ProcessCore:
    """The core in a process of its own.

    Each side binds the socket that it receives from, under random names in a fresh folder that only this user can read.
    Once both sides are connected the folder is removed: what has no name cannot be found by others, nor left behind.

    Attributes:
        pid: the core's process id.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Start the process, and return as soon as it can be spoken to; it goes on loading the model.

        Raises:
            InputError: the config cannot be handed to another process.
            EngineDeadError: the process has died.
        """
        self._decode = msgspec.msgpack.Decoder(ToFront).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._arrived: deque[ToFront] = deque()
        self._error: TwinserveError | None = None
        folder = Path(tempfile.mkdtemp(prefix="twinserve-"))
        try:
            requests_address, updates_address = (_address(folder) for _ in range(2))
            child = Child(
                run_core, config, requests_address, updates_address, title="twinserve: engine core", clean_up=folder
            )
            self._connection = connection = _Connection(child, requests_address, updates_address)
            self.pid = child.pid
            # Also runs when the caller forgets to shut it down, or the interpreter ends.
            self._close = weakref.finalize(self, connection.close, self._encode(Shutdown()))
            self.send(Hello())
            self._await(Connected)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def wait_until_ready(self) -> Ready:
        """Block until the model is loaded."""
        return self._await(Ready)

    def send(self, message: ToCore) -> None:
        """Send a message on its way."""
        if self._error is not None:
            raise self._error
        self._connection.send(self._encode(message))

    def receive(self) -> list[ToFront]:
        """Wait for messages, and for the core's death."""
        if not self._arrived:
            self._fetch()
        arrived = list(self._arrived)
        self._arrived.clear()
        return arrived

    def shutdown(self, grace_s: float = 5.0) -> None:
        """End the process, by force if it does not end by itself."""
        self._error = self._error or EngineDeadError("the engine was shut down")
        if grace_s <= 0:
            self._connection.child.stop(0.0)
        self._close()

    def _await(self, kind: type[_Message]) -> _Message:
        """The next message; they come in order. The core is killed if anything goes wrong, Ctrl-C included."""
        try:
            if not self._arrived:
                self._fetch()
            return cast("_Message", self._arrived.popleft())
        except BaseException:
            self.shutdown(grace_s=0.0)
            raise

    def _fetch(self) -> None:
        for data in self._connection.receive():
            message = self._decode(data)
            if isinstance(message, Failed):
                failure = InputError if message.by_input else EngineDeadError
                self._error = failure(("" if message.by_input else "the engine core has failed: ") + message.message)
            else:
                self._arrived.append(message)
        if not self._arrived:
            self._error = self._error or EngineDeadError(
                f"the engine core (process {self.pid}) {self._connection.child.end}"
            )
            self._connection.child.stop(0.0)  # and what it leaves
            raise self._error


class _Connection:
    """The front's two sockets and the process at their other end."""

    def __init__(self, child: Child, requests_address: str, updates_address: str) -> None:
        self.child = child
        self._context = zmq.Context()
        self._requests, self._updates = self._context.socket(zmq.DEALER), self._context.socket(zmq.PULL)
        for socket in (self._requests, self._updates):
            socket.set_hwm(0)
            socket.linger = 0
        self._requests.reconnect_ivl = 10  # milliseconds; the core has yet to bind its side
        self._requests.connect(requests_address)
        self._updates.bind(updates_address)
        self._poller = zmq.Poller()
        self._poller.register(self._updates, zmq.POLLIN)
        self._poller.register(child.sentinel, zmq.POLLIN)
        self._sending, self._receiving = threading.Lock(), threading.Lock()

    def send(self, message: bytes) -> None:
        """Send a message on its way; does not wait."""
        with self._sending:  # no two threads may use a socket at once
            if not self._requests.closed:
                self._requests.send(message)

    def receive(self) -> list[bytes]:
        """All messages that have come; blocks until there is one. None if the core is dead or the connection closed."""
        with self._receiving:
            if self._updates.closed:
                return []
            if self._updates not in dict(self._poller.poll()) and not self._updates.poll(_LAST_WORDS_MS):
                return []
            messages = []
            try:
                while True:
                    messages.append(self._updates.recv(zmq.NOBLOCK))
            except zmq.Again:
                return messages

    def close(self, farewell: bytes) -> None:
        """End the core, then close the sockets; a `receive` in another thread ends with the core."""
        try:
            if self.child.is_alive:
                self.send(farewell)
            self.child.stop(_GRACE_S)
        finally:
            with self._sending, self._receiving:
                self.child.close()
                self._context.destroy()


def _address(folder: Path) -> str:
    path = str(folder / secrets.token_hex(8))
    if len(path) > _MAX_SOCKET_PATH:
        raise InputError(
            f"the folder for temporary files ({folder.parent}) has too long a name for sockets; set TMPDIR"
        )
    return f"ipc://{path}"
