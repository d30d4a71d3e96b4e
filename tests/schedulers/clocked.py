"""A world with a clock and hidden output lengths, in which a step takes as long as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from schedulers import BatchShape, Request, Scheduler, StepResult
from tests.schedulers.builders import PLAIN, create_request

#: Ends an output.
EOS = 0


def job(name: str, arrival_time: float, prompt: int | Sequence[int], num_output_tokens: int, **fields: object) -> Job:
    """A request and how long its output will be, which is also what is predicted, unless `fields` say otherwise."""
    fields = {"eos_token_id": EOS, "predicted_output_tokens": num_output_tokens, **fields}
    return create_request(name, prompt, arrival_time=arrival_time, **fields), num_output_tokens


#: A request, and the length of its output, EOS included.
Job = tuple[Request, int]


def serve(
    scheduler: Scheduler,
    jobs: Sequence[Job],
    step_s: Callable[[BatchShape], float] = lambda _: 1.0,
    watch: Callable[[], object] = lambda: None,
) -> list[Request]:
    """Serve all; `watch` is called after each step."""
    length_of = {request.request_id: length for request, length in jobs}
    coming = sorted((request for request, _ in jobs), key=lambda request: request.arrival_time, reverse=True)
    now = 0.0
    while coming or scheduler.live:
        if not scheduler.live:
            now = max(now, coming[-1].arrival_time)
        while coming and coming[-1].arrival_time <= now:
            scheduler.add_request(coming.pop())
        output = scheduler.schedule(now)
        assert output.num_scheduled_tokens, "a step made no progress"
        now += step_s(output.shape)
        sampled = {
            name: [EOS if scheduler.live[name].num_output_tokens + 1 == length_of[name] else PLAIN]
            for name in output.sampled_ids
        }
        scheduler.update_from_output(output, StepResult(sampled), now)
        watch()
    return [request for request, _ in jobs]


def mean_time_in_system(requests: Sequence[Request]) -> float:
    """Seconds from arrival to the last token, on average."""
    return sum((request.finish_time or 0.0) - request.arrival_time for request in requests) / len(requests)


def finish_order(requests: Sequence[Request]) -> list[str]:
    """Ids, first to finish first."""
    return [request.request_id for request in sorted(requests, key=lambda request: request.finish_time or 0.0)]
