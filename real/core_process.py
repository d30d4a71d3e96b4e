"""The engine core as a process of its own, and its busy loop."""

from __future__ import annotations

import gc
import sys
import traceback

import msgspec
import zmq

from real.config import EngineConfig
from real.core import EngineCore
from real.messages import Connected, Failed, Shutdown, ToCore, ToFront
from schedulers import InputError, TwinserveError

#: How long last words may take to leave, milliseconds.
_LINGER_MS = 1000


def run_core(config: EngineConfig, requests_address: str, updates_address: str) -> None:
    """What the process runs: answer the front's hello, load the model, serve until told to shut down.

    Whatever goes wrong is told to the front as the last message.

    Args:
        requests_address: bound here; fronts connect DEALER sockets.
        updates_address: bound by the front, which PULLs.
    """
    context = zmq.Context()
    requests, updates = context.socket(zmq.ROUTER), context.socket(zmq.PUSH)
    for socket in (requests, updates):
        socket.set_hwm(0)  # the queue is bounded by the core, which can say no; a socket could only block
        socket.linger = _LINGER_MS
    requests.bind(requests_address)
    updates.connect(updates_address)
    mailbox = Mailbox(requests, updates)
    core = failure = None
    try:
        mailbox.wait_for_hello()
        core = EngineCore(config)
        _serve(core, mailbox)
    except TwinserveError as error:
        failure = Failed(str(error), by_input=core is None and isinstance(error, InputError))
    except Exception as error:  # noqa: BLE001 - whatever it is, the front must know
        where = traceback.extract_tb(error.__traceback__)[-1]
        traceback.print_exc(file=sys.stderr)
        failure = Failed(f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})", by_input=False)
    if failure is not None:
        mailbox.send(failure)  # before the workers end, which may take a while
    if core is not None:
        core.shutdown()
    context.destroy()
    sys.exit(failure is not None)


class Mailbox:
    """The core's two sockets, in messages."""

    def __init__(self, requests: zmq.Socket[bytes], updates: zmq.Socket[bytes]) -> None:
        self._requests = requests
        self._updates = updates
        self._decode = msgspec.msgpack.Decoder(ToCore).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._poller = zmq.Poller()
        self._poller.register(requests, zmq.POLLIN)

    def wait_for_hello(self) -> None:
        """Until both sockets are connected, and their files can go."""
        self._requests.recv_multipart()
        self.send(Connected())

    def watch(self, *fds: int) -> None:
        """Let these file descriptors, too, end a `wait`."""
        for fd in fds:
            self._poller.register(fd, zmq.POLLIN)

    def wait(self) -> None:
        """Sleep until a message has come, or a watched file descriptor is readable."""
        self._poller.poll()

    def drain(self) -> list[ToCore]:
        """All messages that have come; does not wait."""
        messages = []
        try:
            while True:
                messages.append(self._decode(self._requests.recv_multipart(zmq.NOBLOCK)[-1]))
        except zmq.Again:
            return messages

    def send(self, message: ToFront) -> None:
        """Send a message on its way; does not wait."""
        self._updates.send(self._encode(message))


def _serve(core: EngineCore, mailbox: Mailbox) -> None:
    """The busy loop: drain, step, tell; sleep while there is no work."""
    mailbox.send(core.ready)
    mailbox.watch(*core.executor.sentinels)
    # The model's objects stay; looking through them for garbage would stall a step by tens of milliseconds.
    gc.collect()
    gc.freeze()
    while True:
        if not core.has_work:
            mailbox.wait()
            core.executor.check_health()
        messages = mailbox.drain()
        if any(isinstance(message, Shutdown) for message in messages):
            return
        for answer in core.turn(messages):
            mailbox.send(answer)
