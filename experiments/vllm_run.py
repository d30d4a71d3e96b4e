"""A real vLLM run as LLMServingSim 2.0 records it: what served, what was sent, and when each request moved on.

    meta.json            the engine's arguments, its KV blocks, perhaps its whole resolved configuration
    requests.jsonl       one object a request: lengths; arrival; queued, scheduled, first and last token
    timeseries.csv       once a second: requests running and waiting; optional
    config.json          the cluster as its simulator was told of it; only the device's name is taken; optional

Files may be gzipped. Arrivals are on the clock of the process that took the requests, in seconds; the other four times
are on that of the engine core, which has another zero.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.columns import Floats, Ints
from experiments.workloads.files import read_text
from experiments.workloads.request import WorkloadRequest
from schedulers import InputError

_COUNTS = ("input_toks", "output_toks")
_TIMES = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


@dataclass(frozen=True)
class VLLMRun:
    """A run read from its folder; arrays have one element a request, in order of arrival.

    Attributes:
        ids: request ids.
        arrival_s: from the first arrival on.
        queued_s, scheduled_s, first_token_s, last_token_s: when the engine core took a request out of its mailbox,
            first scheduled it, and knew its first and last token; from the first request's queueing on.
    """

    folder: Path
    meta: Mapping[str, Any]
    ids: list[str]
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    arrival_s: Floats
    queued_s: Floats
    scheduled_s: Floats
    first_token_s: Floats
    last_token_s: Floats

    @classmethod
    def read(cls, folder: Path) -> VLLMRun:
        """Read a run.

        Raises:
            InputError: a file is missing or broken, or a request was not served to its end; names it.
        """
        if not folder.is_dir():
            raise InputError(f"question.run={folder}: there is no such folder")
        meta = _read_object(folder / "meta.json")
        rows = sorted(_read_requests(_find(folder, "requests.jsonl")), key=lambda row: row["arrival_time"])
        times = {key: np.array([row[key] for row in rows], dtype=np.float64) for key in _TIMES}
        start = times["queued_ts"].min()
        return cls(
            folder,
            meta,
            [row["request_id"] for row in rows],
            *(np.array([row[key] for row in rows], dtype=np.int64) for key in _COUNTS),
            times["arrival_time"] - times["arrival_time"][0],
            *(times[key] - start for key in _TIMES[1:]),
        )

    @cached_property
    def model(self) -> str:
        """Name of the model without its owner, in lower case, as files in conf/model are named."""
        return str(self.meta.get("model") or self._told("model")).rpartition("/")[2].lower()

    @cached_property
    def device(self) -> str | None:
        """Name of the device as files in conf/device are named; None where the run does not tell."""
        file = self.folder / "config.json"
        if not file.is_file():
            return None
        try:
            return str(_read_object(file)["nodes"][0]["instances"][0]["hardware"]).lower()
        except (KeyError, IndexError, TypeError):
            raise InputError(f"{file}: nodes[0].instances[0].hardware, the device's name, is missing") from None

    def settings(self) -> dict[str, Any]:
        """What the run's engine was limited to, by the keys of our configuration.

        The number of KV blocks is there only if the run tells it. vLLM keeps one of them as a place holder that no
        request ever owns. Where `max_model_len` was not given it is null: the model's own.

        Raises:
            InputError: the run was spread in a way that is not simulated, or does not tell a limit.
        """
        for key in ("data_parallel_size", "pipeline_parallel_size"):
            if (size := self._told(key, 1)) != 1:
                raise InputError(f"{self.folder}: {key}={size}; only runs of a single engine are simulated, with 1")
        tensor_parallel = self._told("tensor_parallel_size", 1)
        if self._told("enable_expert_parallel", False) and tensor_parallel > 1:
            raise InputError(f"{self.folder}: enable_expert_parallel over {tensor_parallel} devices is not simulated")
        blocks = self._told("num_gpu_blocks", None)
        return {
            "scheduler.token_budget": self._told("max_num_batched_tokens"),
            "scheduler.max_num_seqs": self._told("max_num_seqs"),
            "engine.block_size": self._told("block_size", 16),
            "engine.num_blocks": None if blocks is None else blocks - 1,
            "engine.memory_utilization": self._told("gpu_memory_utilization", 0.9),
            "engine.tensor_parallel": tensor_parallel,
            "engine.prefix_caching": self._told("enable_prefix_caching", True),
            "engine.max_model_len": self._told("max_model_len", None),
        }

    @cached_property
    def async_scheduling(self) -> bool:
        """Whether steps were decided ahead; where the run does not tell, yes, as vLLM 0.19 does by default."""
        return bool(self._told("async_scheduling", True))

    def prompts_file(self) -> Path | None:
        """The file of the run's prompts, if it lies where `dataset_path` says, seen from the folder or one above.

        Raises:
            InputError: there is such a file, and its SHA-256 is not the run's `dataset_hash`.
        """
        path = self.meta.get("dataset_path")
        if not isinstance(path, str) or not path:
            return None
        for above in (self.folder.resolve(), *self.folder.resolve().parents):
            for file in (above / path, above / f"{path}.gz"):
                if file.is_file():
                    return self._checked(file)
        return None

    def _checked(self, file: Path) -> Path:
        told, is_so = self.meta.get("dataset_hash"), hashlib.sha256(read_text(str(file)).encode()).hexdigest()
        if told not in (None, is_so):
            raise InputError(
                f"{file} has the SHA-256 {is_so[:12]}..., and {self.folder / 'meta.json'} says that of the run's "
                f"prompts is {str(told)[:12]}...; name the right file: question.prompts=FILE"
            )
        return file

    def requests(self, prompts: Path | None) -> list[WorkloadRequest]:
        """The requests as they were sent, each limited to the tokens it then got.

        Args:
            prompts: JSON lines with `input_tok_ids`, in order of arrival; None: what prompts say is not known.

        Raises:
            InputError: the prompts are not those of the run.
        """
        block_size = self.settings()["engine.block_size"]
        contents = [()] * len(self.ids) if prompts is None else self._contents(prompts, block_size)
        return [
            WorkloadRequest(
                request_id=request_id,
                arrival_s=float(self.arrival_s[i]),
                num_prompt_tokens=int(self.num_prompt_tokens[i]),
                num_output_tokens=int(self.num_output_tokens[i]),
                max_tokens=int(self.num_output_tokens[i]),
                hash_ids=contents[i],
                trace_block_tokens=block_size,
            )
            for i, request_id in enumerate(self.ids)
        ]

    def _contents(self, file: Path, block_size: int) -> list[tuple[int, ...]]:
        """For each prompt the ids of its full blocks; an id stands for a block and all that is before it."""
        if not file.is_file():
            raise InputError(f"question.prompts={file}: there is no such file")
        names: dict[tuple[int, ...], int] = {}
        contents: list[tuple[int, ...]] = []
        lines = [line for line in read_text(str(file)).splitlines() if line.strip()]
        if len(lines) != len(self.ids):
            raise InputError(f"{file} has {len(lines)} prompts, and the run {len(self.ids)} requests")
        for number, line in enumerate(lines, start=1):
            where, num_tokens = f"{file}, line {number}", self.num_prompt_tokens[number - 1]
            tokens = _json_object(line, where).get("input_tok_ids")
            if not isinstance(tokens, list) or len(tokens) != num_tokens:
                raise InputError(f"{where}: input_tok_ids must be the {num_tokens} tokens of request {number}'s prompt")
            ids = []
            before = -1
            for start in range(0, len(tokens) - block_size + 1, block_size):
                before = names.setdefault((before, *tokens[start : start + block_size]), len(names))
                ids.append(before)
            contents.append(tuple(ids))
        return contents

    def load(self) -> dict[str, Floats] | None:
        """Columns t (seconds), running and waiting of timeseries.csv; None if there is none.

        Raises:
            InputError: it is broken.
        """
        file = self.folder / "timeseries.csv"
        if not file.is_file():
            return None
        rows = list(csv.DictReader(read_text(str(file)).splitlines()))
        try:
            return {key: np.array([float(row[key]) for row in rows]) for key in ("t", "running", "waiting")}
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"{file}: t, running and waiting must be columns of numbers ({error})") from None

    def _told(self, key: str, *default: Any) -> Any:
        """What the run says of `key`: first what the engine found, then what it was given.

        Raises:
            InputError: it says nothing, and there is no default.
        """
        resolved = self.meta.get("resolved_config") or {}
        for node in (self.meta.get("kv_cache"), *resolved.values(), self.meta.get("engine_kwargs"), self.meta):
            if isinstance(node, dict) and node.get(key) is not None:
                return node[key]
        if default:
            return default[0]
        raise InputError(f"{self.folder / 'meta.json'} does not tell {key}, which the simulation needs")


def _find(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise InputError(f"question.run={folder}: the folder has neither {name} nor {name}.gz")


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(f"question.run={file.parent}: the folder has no {file.name}")
    return _json_object(read_text(str(file)), str(file))


def _read_requests(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(read_text(str(file)).splitlines(), start=1):
        if not line.strip():
            continue
        row, where = _json_object(line, f"{file}, line {number}"), f"{file}, line {number}"
        for key in _TIMES:
            if type(row.get(key)) not in (int, float) or not math.isfinite(row[key]):
                raise InputError(f"{where}: {key} is {row.get(key)!r}; every request must have been served to its end")
        for key in _COUNTS:
            if type(row.get(key)) is not int or row[key] < 1:
                raise InputError(f"{where}: {key} is {row.get(key)!r}; it must be a whole number of at least 1")
        if not row["queued_ts"] <= row["scheduled_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
            raise InputError(f"{where}: {', '.join(_TIMES[1:])} must follow each other")
        rows.append({**row, "request_id": str(row.get("request_id", number))})
    return rows


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: this is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: this is not a JSON object")
    return found
