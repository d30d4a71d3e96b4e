"""A stream of messages from one process to several others, through shared memory.

The memory is a memfd: it has no name, so that it vanishes with the last process that maps it, however that one ends.
Readers sleep on an eventfd each; a message costs the writer one copy and one system call per reader, whatever the
number of bytes and readers, and nobody spins, since on a CPU the cores belong to the model.

Layout: one position per reader (bytes read so far) after the writer's own (bytes written so far), eight bytes each,
then the ring itself. Positions only grow; a message longer than the ring passes through it in pieces.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from typing import NamedTuple

from real.processes import wait_for

_LENGTH = struct.Struct("<Q")


class RingHandle(NamedTuple):
    """What a process needs to map the ring: numbers of file descriptors that it inherited."""

    memory_fd: int
    wake_fds: tuple[int, ...]
    space_fd: int
    capacity: int

    @property
    def fds(self) -> tuple[int, ...]:
        """All of them."""
        return (self.memory_fd, *self.wake_fds, self.space_fd)


def create_ring(num_readers: int, capacity: int = 1 << 22) -> RingHandle:
    """A ring of `capacity` bytes; the caller hands its file descriptors to the readers, and closes them in the end."""
    memory_fd = os.memfd_create("twinserve-steps")
    os.ftruncate(memory_fd, _LENGTH.size * (1 + num_readers) + capacity)
    wake_fds = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(num_readers))
    return RingHandle(memory_fd, wake_fds, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), capacity)


class _Ring:
    """What writer and readers share."""

    def __init__(self, handle: RingHandle) -> None:
        self._handle = handle
        self._capacity = handle.capacity
        num_positions = 1 + len(handle.wake_fds)
        self._memory = mmap.mmap(handle.memory_fd, _LENGTH.size * num_positions + handle.capacity)
        self._view = memoryview(self._memory)
        self._positions = self._view[: _LENGTH.size * num_positions].cast("Q")
        self._ring = self._view[_LENGTH.size * num_positions :]

    def close(self) -> None:
        """Unmap the memory and close the file descriptors of this process."""
        for view in (self._positions, self._ring, self._view):
            view.release()
        self._memory.close()
        for fd in self._handle.fds:
            os.close(fd)


class RingWriter(_Ring):
    """The one process that writes."""

    def __init__(self, handle: RingHandle, while_full: Callable[[], None]) -> None:
        """Map the ring; `while_full` is called now and then while a reader is behind, and may raise if it is dead."""
        super().__init__(handle)
        self._while_full = while_full

    def send(self, message: bytes) -> None:
        """Give `message` to every reader; blocks only while the slowest has a whole ring yet to read."""
        self._write(memoryview(_LENGTH.pack(len(message))))
        self._write(memoryview(message))
        self._wake()

    def _write(self, data: memoryview) -> None:
        while data:
            written = self._positions[0]
            slowest = min(self._positions[1:])
            start = written % self._capacity
            size = min(len(data), slowest + self._capacity - written, self._capacity - start)
            if not size:
                self._wake()
                _wait(self._handle.space_fd, timeout_s=0.1)
                self._while_full()
                continue
            self._ring[start : start + size] = data[:size]
            self._positions[0] = written + size
            data = data[size:]

    def _wake(self) -> None:
        for fd in self._handle.wake_fds:
            os.eventfd_write(fd, 1)


class RingReader(_Ring):
    """Reader number `index`."""

    def __init__(self, handle: RingHandle, index: int) -> None:
        super().__init__(handle)
        self._index = index

    def receive(self) -> bytes:
        """The next message; blocks until it is there."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(length)

    def _read(self, num_bytes: int) -> bytes:
        message = bytearray()
        while len(message) < num_bytes:
            position = self._positions[1 + self._index]
            start = position % self._capacity
            size = min(num_bytes - len(message), self._positions[0] - position, self._capacity - start)
            if not size:
                _wait(self._handle.wake_fds[self._index])
                continue
            message += self._ring[start : start + size]
            self._positions[1 + self._index] = position + size
            os.eventfd_write(self._handle.space_fd, 1)
        return bytes(message)


def _wait(fd: int, timeout_s: float | None = None) -> None:
    """Sleep until the eventfd `fd` is signalled, and take the signal."""
    if wait_for(fd, timeout_s=timeout_s):
        os.eventfd_read(fd)
