"""The ground floor: requests, KV cache bookkeeping, the scheduler contract, and the policies."""

from schedulers.batch import Batch
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.errors import InputError, RequestRefused, SchedulerError, TwinserveError
from schedulers.fcfs import FCFS
from schedulers.kv_cache import KVCache
from schedulers.priority import Priority
from schedulers.records import RequestRecord, StepRecord
from schedulers.request import SLO, FinishReason, Request, Status
from schedulers.scheduler import Limits, Scheduler, SchedulerContract
from schedulers.static import Static
from schedulers.step import BatchShape, NewRequest, ResumedRequest, SchedulerOutput, StepEvents, StepResult

__all__ = [
    "FCFS",
    "SLO",
    "Batch",
    "BatchShape",
    "ChunkedPrefill",
    "FinishReason",
    "InputError",
    "KVCache",
    "Limits",
    "NewRequest",
    "Priority",
    "Request",
    "RequestRecord",
    "RequestRefused",
    "ResumedRequest",
    "Scheduler",
    "SchedulerContract",
    "SchedulerError",
    "SchedulerOutput",
    "Static",
    "Status",
    "StepEvents",
    "StepRecord",
    "StepResult",
    "TwinserveError",
]
