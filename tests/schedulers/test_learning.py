"""What a policy may learn from those that ended, and whom it may try when."""

from __future__ import annotations

from collections.abc import Iterable

from schedulers import Batch, ChunkedPrefill, FinishReason, Request
from tests.schedulers.builders import add_requests, create_scheduler, run_step


class Learner(ChunkedPrefill):
    """Notes every end, and tries only requests with an even number."""

    def ended(self, request: Request) -> None:
        self.__dict__.setdefault("ends", []).append((request.request_id, request.finish_reason))

    def candidates(self, batch: Batch, now: float) -> Iterable[Request]:
        return (request for request in batch.waiting if int(request.request_id[1:]) % 2 == 0)


def test_a_policy_hears_once_of_every_request_that_finished_or_was_aborted_wherever_it_was() -> None:
    scheduler = create_scheduler(Learner, max_num_seqs=2)
    add_requests(scheduler, [10, 10, 10, 10], max_tokens=2)
    run_step(scheduler)
    scheduler.abort_request("r2", 1.0)
    scheduler.abort_request("r3", 1.0)
    run_step(scheduler)
    scheduler.abort_request("r0", 2.0)
    assert vars(scheduler)["ends"] == [
        ("r2", FinishReason.ABORT),
        ("r3", FinishReason.ABORT),
        ("r0", FinishReason.LENGTH),
    ]


def test_a_policy_may_name_whom_it_tries_and_nobody_else_starts() -> None:
    scheduler = create_scheduler(Learner)
    add_requests(scheduler, [10, 10, 10, 10], max_tokens=2)
    assert list(run_step(scheduler)[0].num_scheduled_tokens) == ["r0", "r2"]
