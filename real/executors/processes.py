"""One process a worker, on this machine."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from real.config import EngineConfig
from real.errors import WorkerDiedError
from real.executors import WorkerFactory, default_worker, prepare, worker_config
from real.processes import Child
from real.shared_ring import RingHandle, RingReader, RingWriter, create_ring
from schedulers import InputError, SchedulerOutput, StepResult, TwinserveError

#: How long a worker may take to end by itself.
_GRACE_S = 2.0


class Processes:
    """A tensor-parallel group of worker processes.

    A call is pickled once and reaches all workers through one ring in shared memory; each worker answers on a pipe of
    its own. Of a step only rank 0 answers, with what was sampled, since the others would say the same; but all of them
    tell of failures. A worker that dies or fails ends the group: the rest of it waits in a collective operation that
    nobody will complete.
    """

    def __init__(self, config: EngineConfig, make_worker: WorkerFactory = default_worker) -> None:
        size = config.parallel.tensor_parallel
        self._workers: list[Child] = []
        self._replies: list[Connection] = []
        self._step = 0
        self._is_shut_down = False
        # Where the workers meet: a file that torch.distributed keeps its keys in until they are connected.
        self._folder = Path(mkdtemp(prefix="twinserve-"))
        handle = create_ring(size)
        self._ring = RingWriter(handle, self.check_health)
        try:
            config = worker_config(config, f"file://{self._folder / 'rendezvous'}")
            for rank in range(size):
                self._start(config, rank, handle, make_worker)
            self.sentinels: Sequence[int] = [worker.sentinel for worker in self._workers]
            self._rank_of = {reply.fileno(): rank for rank, reply in enumerate(self._replies)}
            self._rank_of |= {sentinel: rank for rank, sentinel in enumerate(self.sentinels)}
            self._poll = select.poll()
            for fd in self._rank_of:
                self._poll.register(fd, select.POLLIN)
            self.num_kv_blocks = prepare(self._call_all, config)
        except BaseException:
            self.shutdown()
            raise
        self._remove_folder()

    def _start(self, config: EngineConfig, rank: int, handle: RingHandle, make_worker: WorkerFactory) -> None:
        read_fd, write_fd = os.pipe()
        self._replies.append(Connection(read_fd, writable=False))
        try:
            self._workers.append(
                Child(
                    run_worker,
                    make_worker,
                    config,
                    rank,
                    handle,
                    write_fd,
                    title=f"twinserve: worker {rank} of {config.parallel.tensor_parallel}",
                    pass_fds=(*handle.fds, write_fd),
                    clean_up=self._folder,
                )
            )
        finally:
            os.close(write_fd)

    def execute_model(self, output: SchedulerOutput) -> StepResult:
        """Run a step on every worker.

        Raises:
            WorkerDiedError: one of them died or failed; the message says which, how, and in which step.
        """
        self._step = output.step
        self._ring.send(pickle.dumps(("execute_model", (output,), False), protocol=5))
        result: StepResult = self._collect({0})[0]
        return result

    def check_health(self) -> None:
        """Raise WorkerDiedError if a worker has ended."""
        for rank, worker in enumerate(self._workers):
            if not worker.is_alive:
                raise self._death(rank)

    def shutdown(self) -> None:
        """End the workers: asked to, and killed if they do not."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        with contextlib.suppress(WorkerDiedError):  # then the others are stuck, and get killed
            self._ring.send(pickle.dumps(("shutdown", (), False)))
        healthy = all(worker.is_alive for worker in self._workers)
        for worker in self._workers:
            worker.stop(_GRACE_S if healthy else 0.0)
            worker.close()
        for reply in self._replies:
            reply.close()
        self._ring.close()
        self._remove_folder()

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        self._ring.send(pickle.dumps((method, arguments, True)))
        replies = self._collect(set(range(len(self._workers))))
        return [replies[rank] for rank in range(len(self._workers))]

    def _collect(self, missing: set[int]) -> dict[int, Any]:
        """Wait for an answer of every rank in `missing`, and for bad news of any."""
        answers: dict[int, Any] = {}
        while missing:
            for fd, _ in self._poll.poll():
                rank = self._rank_of[fd]
                if fd == self._workers[rank].sentinel:
                    raise self._death(rank)
                try:
                    error, value = pickle.loads(self._replies[rank].recv_bytes())  # noqa: S301 - from our own child
                except EOFError:
                    raise self._death(rank) from None
                if error is not None:
                    raise self._failure(rank, error)
                answers[rank] = value
                missing.discard(rank)
        return answers

    def _failure(self, rank: int, error: TwinserveError | str) -> Exception:
        """What a worker told of itself; unless another's death explains it."""
        if isinstance(error, TwinserveError):
            return error
        self._poll.poll(100)  # the news of a death may be an instant later than its consequences
        self.check_health()
        return WorkerDiedError(f"{self._workers[rank].title} failed in step {self._step}: {error}")

    def _death(self, rank: int) -> WorkerDiedError:
        worker = self._workers[rank]
        return WorkerDiedError(f"{worker.title} (process {worker.pid}) {worker.end} in step {self._step}")

    def _remove_folder(self) -> None:
        for file in self._folder.glob("*"):
            file.unlink(missing_ok=True)
        if self._folder.exists():
            self._folder.rmdir()


def run_worker(make_worker: WorkerFactory, config: EngineConfig, rank: int, handle: RingHandle, reply_fd: int) -> None:
    """What a worker process runs: answer calls until told to shut down."""
    ring = RingReader(handle, rank)
    replies = Connection(reply_fd, readable=False)

    def answer(error: TwinserveError | str | None, value: Any) -> None:
        replies.send_bytes(pickle.dumps((error, value), protocol=5))

    try:
        worker = make_worker(config, rank)
        while True:
            method, arguments, all_answer = pickle.loads(ring.receive())  # noqa: S301 - from our parent
            value = getattr(worker, method)(*arguments)
            if method == "shutdown":
                return
            if rank == 0 or all_answer:
                answer(None, value)
    except BrokenPipeError:
        return  # the core is dead, and this process will be in a moment
    except InputError as error:
        answer(error, None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the core must know
        where = traceback.extract_tb(error.__traceback__)[-1]
        traceback.print_exc(file=sys.stderr)
        answer(f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})", None)
