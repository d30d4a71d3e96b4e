"""One Ray actor a worker, on one machine or on several."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Sequence
from typing import Any

from real.config import EngineConfig
from real.errors import WorkerDiedError
from real.executors import WorkerFactory, default_worker, prepare, worker_config
from schedulers import InputError, SchedulerOutput, StepResult, TwinserveError


class RayActors:
    """A tensor-parallel group of Ray actors.

    Joins the cluster that RAY_ADDRESS names, or starts one on this machine for as long as the engine lives. Ray finds
    places for the actors: each takes a GPU, or as many CPUs as it has threads.
    """

    sentinels: Sequence[int] = ()

    def __init__(self, config: EngineConfig, make_worker: WorkerFactory = default_worker) -> None:
        try:
            ray = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise InputError("executor='ray' needs the package ray: `pip install 'twinserve[ray]'`") from error
        self._ray: Any = ray
        self._actors: list[Any] = []
        size = config.parallel.tensor_parallel
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            local = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
            ray.init(log_to_driver=False, configure_logging=False, **local)
        try:
            actor_class = ray.remote(**self._needs(config))(TwinserveWorker)
            self._actors = [actor_class.remote() for _ in range(size)]
            meeting = self._get([self._actors[0].meeting_point.remote()])[0] if size > 1 else ""
            config = worker_config(config, meeting)
            self._get([actor.make.remote(make_worker, config, rank) for rank, actor in enumerate(self._actors)])
            self.num_kv_blocks = prepare(self._call_all, config)
        except BaseException:
            self.shutdown()
            raise

    def execute_model(self, output: SchedulerOutput) -> StepResult:
        """Run a step on every actor.

        Raises:
            WorkerDiedError: one of them died or failed.
        """
        shared = self._ray.put(output)
        result: StepResult = self._get([actor.call.remote("execute_model", shared) for actor in self._actors])[0]
        return result

    def check_health(self) -> None:
        """Raise WorkerDiedError if an actor has died."""
        self._call_all("ping")

    def shutdown(self) -> None:
        """End the actors, and the cluster if it was started for them."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._owns_cluster:
            self._ray.shutdown()
            self._owns_cluster = False

    def _needs(self, config: EngineConfig) -> dict[str, int]:
        """What Ray must find for each actor."""
        size, there = config.parallel.tensor_parallel, self._ray.cluster_resources()
        num_gpus, num_cpus = int(there.get("GPU", 0)), int(there.get("CPU", 0))
        if config.device.device == "cuda" or (config.device.device == "auto" and num_gpus):
            kind, each, total = "GPU", 1, num_gpus
        else:
            kind, each, total = "CPU", config.device.num_threads or max(num_cpus // size, 1), num_cpus
        if each * size > total:  # Ray would wait for more machines, without a word
            raise InputError(
                f"executor='ray': {size} workers need {each * size} {kind}s, and the cluster has {total}; give it "
                "more, or lower tensor_parallel or num_threads"
            )
        return {f"num_{kind.lower()}s": each}

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self._get([actor.call.remote(method, *arguments) for actor in self._actors])

    def _get(self, references: list[Any]) -> list[Any]:
        """All results, or the first bad news of any actor."""
        errors = self._ray.exceptions
        waiting = list(references)
        try:
            while waiting:
                done, waiting = self._ray.wait(waiting)
                self._ray.get(done)
            return list(self._ray.get(references))
        except errors.RayActorError as error:
            raise WorkerDiedError(f"a Ray actor died: {str(error).splitlines()[0]}") from error
        except errors.RayTaskError as error:
            if isinstance(error.cause, TwinserveError):
                raise error.cause from None
            cause = str(error.cause).splitlines()[0]
            raise WorkerDiedError(f"a Ray actor failed: {type(error.cause).__name__}: {cause}") from error


class TwinserveWorker:
    """A worker behind Ray, which shows the name of this class in process lists."""

    def __init__(self) -> None:
        self._worker: Any = None

    def meeting_point(self) -> str:
        """A free address on this actor's machine, for torch.distributed."""
        host = importlib.import_module("ray").util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def make(self, make_worker: WorkerFactory, config: EngineConfig, rank: int) -> None:
        """Make the worker of this rank."""
        self._worker = make_worker(config, rank)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker."""
        return None if method == "ping" else getattr(self._worker, method)(*arguments)
