"""The ground floor: requests, KV cache bookkeeping, the scheduler contract, and the policies."""

from schedulers.aging import Aging
from schedulers.alternating import Alternating
from schedulers.batch import Batch
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.displacing import Displacing
from schedulers.edf import EDF
from schedulers.errors import InputError, RequestRefused, SchedulerError, TwinserveError
from schedulers.fcfs import FCFS
from schedulers.hrrn import HRRN
from schedulers.kv_cache import KVCache
from schedulers.lpm import LPM
from schedulers.mlfq import MLFQ
from schedulers.orca import Orca
from schedulers.past_future import PastFuture
from schedulers.priority import Priority
from schedulers.random_order import RandomOrder
from schedulers.records import RequestRecord, StepRecord
from schedulers.request import SLO, FinishReason, Request, Status
from schedulers.reserving import Reserving
from schedulers.scheduler import Limits, Scheduler, SchedulerContract
from schedulers.sjf import SJF
from schedulers.srpt import SRPT
from schedulers.static import Static
from schedulers.step import BatchShape, NewRequest, ResumedRequest, SchedulerOutput, StepEvents, StepResult
from schedulers.vtc import VTC

__all__ = [
    "EDF",
    "FCFS",
    "HRRN",
    "LPM",
    "MLFQ",
    "SJF",
    "SLO",
    "SRPT",
    "VTC",
    "Aging",
    "Alternating",
    "Batch",
    "BatchShape",
    "ChunkedPrefill",
    "Displacing",
    "FinishReason",
    "InputError",
    "KVCache",
    "Limits",
    "NewRequest",
    "Orca",
    "PastFuture",
    "Priority",
    "RandomOrder",
    "Request",
    "RequestRecord",
    "RequestRefused",
    "Reserving",
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
