"""Every invariant of a scheduler, checked at every call by a world that takes nothing on trust.

What is checked comes from three sources that know nothing of the inside of a scheduler: the limits, a worker that sees
only the outputs (`WorkerMirror`), and this world's own account of who is live, what was sampled and what was dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from schedulers import FinishReason, KVCache, Request, RequestRefused, Scheduler, SchedulerOutput, Status, StepResult
from tests.schedulers.worker_mirror import WorkerMirror, continuation


class CheckedWorld:
    """Hands requests over, runs steps, cancels, and fails an assertion when an invariant does not hold.

    Steps may overlap: `dispatch` decides one and computes it, `learn` hands the oldest result back.

    Args:
        scheduler: the one to check; fresh.
        makes_progress: whether a step must schedule something while requests are live and no step is in flight. True of
            every sane policy; a test's own need not be sane.
    """

    def __init__(self, scheduler: Scheduler, *, makes_progress: bool = True) -> None:
        limits = scheduler.limits
        self.scheduler = scheduler
        self.makes_progress = makes_progress
        self.now = 0.0
        self.live: dict[str, Request] = {}
        self.finished: list[Request] = []
        #: Steps that are decided and computed, and whose results the scheduler does not know yet.
        self.in_flight: deque[tuple[SchedulerOutput, dict[str, list[int]]]] = deque()
        #: The step in flight that computes a request; whoever was aborted or preempted meanwhile is not here.
        self._computing: dict[str, int] = {}
        self._prompts: dict[Request, Sequence[int]] = {}
        self._outputs: dict[Request, list[int]] = {}
        self._worker = WorkerMirror(
            limits.num_blocks, limits.block_size, self.live.__getitem__, self._prompts.__getitem__
        )

    # -- what happens -------------------------------------------------------------------------------------------------

    def arrive(self, request: Request, prompt: Sequence[int] | None = None) -> bool:
        """Hand a request over; `prompt` is the true one of a request that has only a number. False: it was refused."""
        before = snapshot(self.scheduler)
        limits = self.scheduler.limits
        num_wanted = request.num_prompt_tokens + (request.max_tokens or 1)
        fits = num_wanted <= min(limits.max_model_len, limits.num_blocks * limits.block_size)
        try:
            self.scheduler.add_request(request)
        except RequestRefused:
            assert not fits or request.request_id in self.live, f"{request!r} was refused and could have been served"
            assert snapshot(self.scheduler) == before, "a refusal changed something"
            return False
        assert fits, f"{request!r} was accepted and can never be served"
        assert request.request_id not in self.live, "a live id was accepted twice"
        self.live[request.request_id] = request
        self._prompts[request] = list(request.prompt_token_ids or prompt or ())
        self._outputs[request] = []
        self.check()
        return True

    def abort(self, request_id: str) -> None:
        """Cancel a request."""
        request = self.live.pop(request_id, None)
        assert self.scheduler.abort_request(request_id, self.now) is request
        if request is not None:
            self._computing.pop(request_id, None)
            self._ended(request, FinishReason.ABORT)
        self.check()

    def dispatch(self, num_to_sample: Callable[[str], int] = lambda _: 1) -> SchedulerOutput:
        """Decide a step, check it, and let the worker compute it."""
        self.now += 1.0
        running_before = [request for request in self.live.values() if request.status is Status.RUNNING]
        num_preempted_before = {request: request.num_preemptions for request in self.live.values()}
        output = self.scheduler.schedule(self.now)
        for request_id in output.preempted_ids:
            assert self.live[request_id] in running_before, f"{request_id} is preempted and did not run"
            assert self.live[request_id].status is Status.PREEMPTED
            self._computing.pop(request_id, None)
        for request in self.live.values():
            counted = request.num_preemptions - num_preempted_before[request]
            assert counted == output.preempted_ids.count(request.request_id), (
                f"{request!r}: {counted} preemptions counted"
            )
        self._check_step(output)
        due = [
            request_id
            for request_id, num_tokens in output.num_scheduled_tokens.items()
            if self.live[request_id].num_computed_tokens + num_tokens == self.live[request_id].num_tokens
        ]
        assert output.sampled_ids == due, "who samples is not who has nothing left to compute"
        sampled = self._worker.execute(output, num_to_sample)
        self._computing.update(dict.fromkeys(output.num_scheduled_tokens, output.step))
        self.in_flight.append((output, sampled))
        self._check_worker()
        self.check()
        return output

    def learn(self) -> None:
        """Hand the oldest result back."""
        self.now += 1.0
        output, sampled = self.in_flight.popleft()
        accepted, ended = {}, {}
        for request_id in output.num_scheduled_tokens:
            if self._computing.get(request_id) != output.step:
                continue  # aborted or preempted since
            del self._computing[request_id]
            if request_id in sampled:
                accepted[request_id], ended[request_id] = cut(self.live[request_id], sampled[request_id])
                self._outputs[self.live[request_id]] += accepted[request_id]
        events = self.scheduler.update_from_output(output, StepResult(sampled), self.now)
        assert {request_id: list(tokens) for request_id, tokens in events.new_token_ids.items()} == accepted
        finished = [request_id for request_id, reason in ended.items() if reason is not None]
        assert [request.request_id for request in events.finished] == finished
        for request_id in finished:
            self._ended(self.live.pop(request_id), ended[request_id])
        self.check()

    def run_to_end(self) -> None:
        """Run until nobody is left, which must not take forever, and leave an empty engine."""
        while self.in_flight:
            self.learn()
        num_steps = 0
        most_steps = 50 + 20 * sum(request.token_limit for request in self.live.values())
        while self.live:
            assert self.dispatch().num_scheduled_tokens, "a step made no progress"
            self.learn()
            num_steps += 1
            assert num_steps <= most_steps, f"{len(self.live)} requests are still live after {num_steps} steps"
        cache = self.scheduler.kv_cache
        assert cache.num_free_blocks == cache.num_blocks
        last = self.scheduler.schedule(self.now)
        assert not last.num_scheduled_tokens
        self._worker.execute(last, lambda _: 1)
        assert not self._worker.rows, "the worker was not told of every end"
        assert last.finished_ids or not self.finished or self.scheduler.schedule(self.now).finished_ids == []
        cache.reset()
        cache.check_integrity([])

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds between any two calls."""
        scheduler, cache = self.scheduler, self.scheduler.kv_cache
        cache.check_integrity(self.live.values())
        running = [request for request in self.live.values() if request.status is Status.RUNNING]
        waiting = [request for request in self.live.values() if request.status is not Status.RUNNING]
        assert len(running) == scheduler.num_running <= scheduler.limits.max_num_seqs
        assert len(waiting) == scheduler.num_waiting
        assert sorted(map(id, running)) == sorted(map(id, scheduler.running))
        assert sorted(map(id, waiting)) == sorted(map(id, scheduler.waiting))
        for request in self.live.values():
            assert request.status is not Status.FINISHED
            assert request.output_token_ids == self._outputs[request], f"{request!r} lost, doubled or reordered a token"
            assert request.num_tokens == request.num_prompt_tokens + len(self._outputs[request])
            assert len(request.token_times) == len(request.output_token_ids)
            assert request.num_computed_tokens < request.num_tokens <= request.token_limit
            assert request.num_computed_tokens <= request.block_capacity
            if request.status is not Status.RUNNING:
                assert not request.block_ids, f"{request!r} owns blocks"
                assert request.num_computed_tokens == 0
        self._check_counters(cache)

    def _check_step(self, output: SchedulerOutput) -> None:
        limits, scheduled = self.scheduler.limits, output.num_scheduled_tokens
        assert sum(scheduled.values()) == output.total_num_scheduled_tokens <= limits.token_budget
        assert len(scheduled) <= limits.max_num_seqs
        assert all(type(num_tokens) is int and num_tokens > 0 for num_tokens in scheduled.values())
        if self.makes_progress and self.live and not self.in_flight:
            assert scheduled, "a step made no progress"
        prefills, decode_contexts = [], []
        for request_id, num_tokens in scheduled.items():
            request = self.live[request_id]
            assert request.status is Status.RUNNING, f"{request!r} is scheduled"
            assert request_id not in self._computing, f"{request!r} is scheduled while a step in flight computes it"
            computed = request.num_computed_tokens
            if num_tokens == 1 and computed + 1 == request.num_tokens and request.output_token_ids:
                decode_contexts.append(computed)
            else:
                prefills.append((num_tokens, computed))
        assert output.shape.prefills == prefills
        assert sorted(output.shape.decode_contexts) == sorted(decode_contexts)
        assert output.shape.num_sampled == len(output.sampled_ids)

    def _check_worker(self) -> None:
        """The worker, who saw only differences, knows of each running request what the scheduler knows."""
        in_flight = {
            (output.step, request_id): num_tokens
            for output, _ in self.in_flight
            for request_id, num_tokens in output.num_scheduled_tokens.items()
        }
        for request in self.scheduler.running:
            row, name = self._worker.rows[request.request_id], request.request_id
            ahead = in_flight[self._computing[name], name] if name in self._computing else 0
            assert row.block_ids == request.block_ids
            assert row.num_computed_tokens == request.num_computed_tokens + ahead
        owning = [request_id for request_id, row in self._worker.rows.items() if row.block_ids]
        assert sorted(owning) == sorted(request.request_id for request in self.scheduler.running)

    def _check_counters(self, cache: KVCache) -> None:
        """Hits are counted once, for admissions that lasted, and apart from hits after preemptions."""
        assert 0 <= cache.num_hit_tokens <= cache.num_lookup_tokens
        everyone = [*self.live.values(), *self.finished]
        assert cache.num_hit_tokens == sum(request.num_cached_tokens for request in everyone)
        assert cache.num_rehit_tokens == sum(request.num_recached_tokens for request in everyone)

    def _ended(self, request: Request, reason: FinishReason | None) -> None:
        self.finished.append(request)
        assert request.status is Status.FINISHED
        assert request.finish_reason is reason
        assert request.finish_time == self.now
        assert not request.block_ids
        output = self._outputs[request]
        assert request.output_token_ids == output
        assert output == continuation(request, self._prompts[request], len(output)), (
            f"{request!r} produced other tokens"
        )


def cut(request: Request, sampled: Sequence[int]) -> tuple[list[int], FinishReason | None]:
    """The rule of stopping, told independently: which of the sampled tokens count, and whether they end the request."""
    accepted: list[int] = []
    for token in sampled:
        accepted.append(token)
        num_output = len(request.output_token_ids) + len(accepted)
        eos = token == request.eos_token_id and not request.ignore_eos
        if (eos or token in request.stop_token_ids) and num_output >= request.min_tokens:
            return accepted, FinishReason.STOP
        if request.num_prompt_tokens + num_output == request.token_limit:
            return accepted, FinishReason.LENGTH
    return accepted, None


def snapshot(scheduler: Scheduler) -> Any:
    """All that a call which fails must leave as it was, in a form that can be compared."""
    cache = scheduler.kv_cache
    return (
        snapshot_cache(cache),
        [(request.request_id, request.block_ids.copy(), request.num_computed_tokens) for request in scheduler.running],
        [request.request_id for request in scheduler.waiting],
    )


def snapshot_cache(cache: KVCache) -> Any:
    """The state of a cache, private parts included."""
    return (
        cache._blank.copy(),
        list(cache._cached),
        cache._num_owners.copy(),
        cache._hash_of.copy(),
        dict(cache._block_of),
        {name: twins.copy() for name, twins in cache._twins.items()},
    )
