"""Records as columns: the form in which runs are measured, stored and drawn.

Engines emit one NamedTuple a step and one a request (`schedulers.records`). Every question asked of a whole run is a
question about columns, so the records are turned once, here, into numpy arrays; a stored run is read back into the
same form. A long run comes in pieces, each the columns of some consecutive records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from schedulers.records import RequestRecord, StepRecord

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """The fields of `StepRecord`, each an array with one entry a step."""

    step: Ints
    start_s: Floats
    end_s: Floats
    num_prefill_tokens: Ints
    num_decode_tokens: Ints
    num_prefills: Ints
    num_running: Ints
    num_waiting: Ints
    kv_usage: Floats
    num_preemptions: Ints
    replica: Ints
    request_s: Floats

    @classmethod
    def of(cls, steps: StepColumns | Sequence[StepRecord]) -> StepColumns:
        """The columns of these records; columns are returned as they are."""
        if isinstance(steps, StepColumns):
            return steps
        floats = {"start_s", "end_s", "kv_usage"}
        *always, last = StepRecord._fields
        numbers = [_numbers(steps, name, np.float64 if name in floats else np.int64) for name in always]
        return cls(*numbers, np.array([getattr(step, last) for step in steps], dtype=np.float64))  # None becomes NaN

    def __len__(self) -> int:
        return len(self.step)

    def of_replica(self, replica: int) -> StepColumns:
        """The steps of one engine, in order."""
        mine = self.replica == replica
        return StepColumns(*(getattr(self, name)[mine] for name in StepRecord._fields))


@dataclass(frozen=True, slots=True, eq=False)
class RequestColumns:
    """The fields of `RequestRecord`, each with one entry a request.

    Token times are ragged, so they are one flat array: those of request i are
    `token_times_s[token_offsets[i]:token_offsets[i + 1]]`. NaN stands for a time or a target that a request does not
    have.
    """

    request_id: list[str]
    arrival_s: Floats
    first_scheduled_s: Floats
    finish_s: Floats
    token_times_s: Floats
    token_offsets: Ints
    finish_reason: list[str]
    num_prompt_tokens: Ints
    num_output_tokens: Ints
    num_cached_tokens: Ints
    num_preemptions: Ints
    priority: Ints
    client_id: list[str]
    session_id: list[str]
    slo_ttft_s: Floats
    slo_tpot_s: Floats
    replica: Ints

    @classmethod
    def of(cls, requests: RequestColumns | Sequence[RequestRecord]) -> RequestColumns:
        """The columns of these records; columns are returned as they are."""
        if isinstance(requests, RequestColumns):
            return requests

        def floats(name: str) -> Floats:
            return np.array([getattr(request, name) for request in requests], dtype=np.float64)  # None becomes NaN

        def ints(name: str) -> Ints:
            return _numbers(requests, name, np.int64)

        def texts(name: str) -> list[str]:
            return [getattr(request, name) for request in requests]

        counts = [len(request.token_times_s) for request in requests]
        token_offsets = offsets(counts)
        flat = chain.from_iterable(request.token_times_s for request in requests)
        return cls(
            request_id=texts("request_id"),
            arrival_s=floats("arrival_s"),
            first_scheduled_s=floats("first_scheduled_s"),
            finish_s=floats("finish_s"),
            token_times_s=np.fromiter(flat, dtype=np.float64, count=int(token_offsets[-1])),
            token_offsets=token_offsets,
            finish_reason=texts("finish_reason"),
            num_prompt_tokens=ints("num_prompt_tokens"),
            num_output_tokens=ints("num_output_tokens"),
            num_cached_tokens=ints("num_cached_tokens"),
            num_preemptions=ints("num_preemptions"),
            priority=ints("priority"),
            client_id=texts("client_id"),
            session_id=texts("session_id"),
            slo_ttft_s=floats("slo_ttft_s"),
            slo_tpot_s=floats("slo_tpot_s"),
            replica=ints("replica"),
        )

    def __len__(self) -> int:
        return len(self.request_id)

    @property
    def completed(self) -> Bools:
        """True for requests that ran to their end: not aborted, with at least one token."""
        aborted = np.array([reason == "abort" for reason in self.finish_reason], dtype=np.bool_)
        return ~aborted & (np.diff(self.token_offsets) > 0)

    @property
    def first_token_s(self) -> Floats:
        """When the first output token was known; NaN for a request without any."""
        has_token = np.diff(self.token_offsets) > 0
        first = np.full(len(self), np.nan)
        first[has_token] = self.token_times_s[self.token_offsets[:-1][has_token]]
        return first


def offsets(lengths: Sequence[int] | Ints) -> Ints:
    """Where each of several runs of these lengths starts in a flat array, and, last, where the array ends."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _numbers(records: Sequence[Any], name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
    values: Iterable[Any] = map(attrgetter(name), records)
    return np.fromiter(values, dtype=dtype, count=len(records))
