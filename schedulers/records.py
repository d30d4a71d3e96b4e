"""What a run leaves behind, defined once for both worlds: one record a step, one a request. Times are in seconds."""

from __future__ import annotations

from typing import NamedTuple

from schedulers.request import Request
from schedulers.step import SchedulerOutput


class StepRecord(NamedTuple):
    """One step of an engine, as it was scheduled and as long as it took."""

    step: int
    start_s: float
    end_s: float
    #: Tokens of prompts (and of recomputation after preemptions), and of decodes; their sum is the step's tokens.
    num_prefill_tokens: int
    num_decode_tokens: int
    #: Requests that computed a part of their prompt in this step.
    num_prefills: int
    #: Requests that hold a slot, and requests that wait, when the step starts.
    num_running: int
    num_waiting: int
    #: Share of KV blocks that requests own when the step starts, 0 to 1.
    kv_usage: float
    #: Requests that lost their place in this step.
    num_preemptions: int
    #: Which engine of a cluster took it, counted from 0.
    replica: int = 0
    #: The time that requests spent in the system since the last step's end, added up: the integral of their number.
    #: What a request spent before it came to this engine is in it too. None: the engine keeps no account of it.
    request_s: float | None = None

    @classmethod
    def of(
        cls,
        output: SchedulerOutput,
        start_s: float,
        end_s: float,
        num_running: int,
        num_waiting: int,
        kv_usage: float,
        replica: int = 0,
        request_s: float | None = None,
    ) -> StepRecord:
        """The record of a step that was run; what runs, waits and is used is told as it was decided, before it ran."""
        shape = output.shape
        return cls(
            output.step,
            start_s,
            end_s,
            shape.num_prefill_tokens,
            len(shape.decode_contexts),
            len(shape.prefills),
            num_running,
            num_waiting,
            kv_usage,
            len(output.preempted_ids),
            replica,
            request_s,
        )


class RequestRecord(NamedTuple):
    """One request from arrival to its end."""

    request_id: str
    arrival_s: float
    #: None when it ended without ever being scheduled.
    first_scheduled_s: float | None
    finish_s: float
    #: When each output token was known to the engine.
    token_times_s: tuple[float, ...]
    #: "stop", "length" or "abort".
    finish_reason: str
    num_prompt_tokens: int
    num_output_tokens: int
    #: Prompt tokens found in the prefix cache on first admission.
    num_cached_tokens: int
    num_preemptions: int
    priority: int
    client_id: str
    session_id: str
    #: Targets of this request, None where it has none.
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    #: Which engine of a cluster served it, counted from 0.
    replica: int = 0

    @classmethod
    def of(cls, request: Request, replica: int = 0) -> RequestRecord:
        """The record of a finished request."""
        if request.finish_time is None or request.finish_reason is None:
            raise ValueError(f"{request!r} has not finished")
        slo = request.slo
        return cls(
            request.request_id,
            request.arrival_time,
            request.first_scheduled_time,
            request.finish_time,
            tuple(request.token_times),
            request.finish_reason.value,
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.num_cached_tokens,
            request.num_preemptions,
            request.priority,
            request.client_id,
            request.session_id,
            slo.ttft_s if slo else None,
            slo.tpot_s if slo else None,
            replica,
        )
