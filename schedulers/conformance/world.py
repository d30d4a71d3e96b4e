"""A world that takes nothing on trust: it runs a scheduler and checks every rule at every call.

What is checked comes from three sources that know nothing of the inside of a scheduler: the limits, a worker that sees
only the outputs (`WorkerMirror`), and this world's own account of who is live, what was sampled and what was dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from schedulers.brief import StepBrief
from schedulers.conformance.rules import BrokenRule, Rule
from schedulers.conformance.state import check_blocks, check_counters, check_request, cut
from schedulers.conformance.worker_mirror import WorkerMirror, continuation
from schedulers.decisions import Arrival
from schedulers.errors import RequestRefused
from schedulers.request import FinishReason, Request, Status
from schedulers.scheduler import Limits, Scheduler, SchedulerContract
from schedulers.step import SchedulerOutput, StepEvents, StepResult

#: The name of a request of one token that comes after all others.
ONE_MORE = "one_more"


class CheckedWorld:
    """Hands requests over, runs steps, cancels, and raises `BrokenRule` when a rule does not hold.

    Steps may overlap: `dispatch` decides one and computes it, `learn` hands the oldest result back.

    Args:
        scheduler: the one to check; fresh.
        limits: those that it was given, if it may have changed its own.
        makes_progress: whether a step must schedule something while requests are live and no step is in flight. True of
            every sane policy; a test's own need not be sane.
    """

    def __init__(
        self, scheduler: SchedulerContract, limits: Limits | None = None, *, makes_progress: bool = True
    ) -> None:
        self.scheduler = scheduler
        self.limits = limits = limits or scheduler.limits
        self.makes_progress = makes_progress
        #: The time that the scheduler is told, seconds; a step takes one, unless `learn` is told otherwise.
        self.now = 0.0
        self.live: dict[str, Request] = {}
        self.finished: list[Request] = []
        #: What each step decided.
        self.briefs: list[StepBrief] = []
        #: Steps that are decided and computed, and whose results the scheduler does not know yet.
        self.in_flight: deque[tuple[SchedulerOutput, dict[str, list[int]]]] = deque()
        #: The step in flight that computes a request; whoever was aborted or preempted meanwhile is not here.
        self._computing: dict[str, int] = {}
        self._asked: dict[Request, Arrival] = {}
        self._prompts: dict[Request, Sequence[int]] = {}
        self._outputs: dict[Request, list[int]] = {}
        self._worker = WorkerMirror(
            limits.num_blocks, limits.block_size, self.live.__getitem__, self._prompts.__getitem__
        )

    # -- what happens -------------------------------------------------------------------------------------------------

    def arrive(self, request: Request, prompt: Sequence[int] | None = None) -> bool:
        """Hand a request over; `prompt` is the true one of a request that has only a number. False: it was refused."""
        before = self.snapshot()
        name, limits = request.request_id, self.limits
        num_wanted = request.num_prompt_tokens + (request.max_tokens or 1)
        fits = num_wanted <= min(limits.max_model_len, limits.num_blocks * limits.block_size)
        asked = Arrival.of(request)
        try:
            self.scheduler.add_request(request)
        except RequestRefused as refusal:
            may_lack = request.predicted_output_tokens is None or request.slo is None  # what the policy goes by
            if fits and name not in self.live and not may_lack:
                raise BrokenRule(Rule.REFUSAL, f"{request!r} could be served and is refused: {refusal}") from refusal
            if self.snapshot() != before:
                raise BrokenRule(Rule.REFUSAL, f"refusing {request!r} changed something") from refusal
            return False
        if not fits:
            raise BrokenRule(
                Rule.REFUSAL, f"{request!r} is accepted and needs {num_wanted} tokens, more than there are"
            )
        if name in self.live:
            raise BrokenRule(Rule.REFUSAL, f"a second request {name} is accepted while the first is live")
        self.live[name] = request
        self._asked[request] = asked
        self._prompts[request] = list(request.prompt_token_ids or prompt or ())
        self._outputs[request] = []
        self.check()
        return True

    def abort(self, request_id: str) -> None:
        """Cancel a request."""
        request = self.live.pop(request_id, None)
        if self.scheduler.abort_request(request_id, self.now) is not request:
            raise BrokenRule(Rule.ENDING, f"cancelling {request_id} does not return {request!r}")
        if request is not None:
            self._computing.pop(request_id, None)
            self._ended(request, FinishReason.ABORT)
        self.check()

    def dispatch(self, num_to_sample: Callable[[str], int] = lambda _: 1) -> SchedulerOutput:
        """Decide a step, check it, and let the worker compute it."""
        running_before = {request.request_id for request in self._holding_slots()}
        num_preempted_before = {request: request.num_preemptions for request in self.live.values()}
        output: Any = self.scheduler.schedule(self.now)
        if not isinstance(output, SchedulerOutput):
            raise BrokenRule(Rule.ANSWERS, f"schedule returns {output!r}, which is no SchedulerOutput")
        self.briefs.append(StepBrief.of(output))
        for name in output.preempted_ids:
            if name not in running_before or self.live[name].status is not Status.PREEMPTED:
                raise BrokenRule(Rule.PREEMPTION, f"{name} is preempted, and did not run or still does")
            self._computing.pop(name, None)
        for request in self.live.values():
            counted = request.num_preemptions - num_preempted_before[request]
            said = output.preempted_ids.count(request.request_id)
            if counted != said or said > 1:
                raise BrokenRule(
                    Rule.PREEMPTION, f"{request.request_id} is preempted {said} times in a step and counts {counted}"
                )
        self._check_step(output)
        if untold := [name for name in self._worker.rows if name not in (*self.live, *output.finished_ids)]:
            raise BrokenRule(Rule.ENDING, f"workers are not told that {', '.join(untold)} ended")
        sampled = self._worker.execute(output, num_to_sample)
        self._computing.update(dict.fromkeys(output.num_scheduled_tokens, output.step))
        self.in_flight.append((output, sampled))
        self._check_worker()
        self.check()
        return output

    def learn(self, now: float | None = None) -> None:
        """Hand the oldest result back, at `now`, or a second later."""
        self.now = self.now + 1.0 if now is None else now
        output, sampled = self.in_flight.popleft()
        accepted, ended = {}, {}
        for request_id in output.num_scheduled_tokens:
            if self._computing.get(request_id) != output.step:
                continue  # aborted or preempted since
            del self._computing[request_id]
            if request_id in sampled:
                accepted[request_id], ended[request_id] = cut(self.live[request_id], sampled[request_id])
                self._outputs[self.live[request_id]] += accepted[request_id]
        events: Any = self.scheduler.update_from_output(output, StepResult(sampled), self.now)
        if not isinstance(events, StepEvents):
            raise BrokenRule(Rule.ANSWERS, f"update_from_output returns {events!r}, which is no StepEvents")
        told = {request_id: list(tokens) for request_id, tokens in events.new_token_ids.items()}
        if told != accepted:
            raise BrokenRule(Rule.TOKENS, f"{accepted} were sampled and {told} are handed to the clients")
        finished = [request_id for request_id, reason in ended.items() if reason is not None]
        if [request.request_id for request in events.finished] != finished:
            raise BrokenRule(Rule.ENDING, f"{events.finished} are said to have ended, and {finished} did")
        for request_id in finished:
            self._ended(self.live.pop(request_id), ended[request_id])
        self.check()

    def run_to_end(self) -> None:
        """Run until nobody is left, which must not take forever, and leave an empty engine."""
        while self.in_flight:
            self.learn()
        most_steps = len(self.briefs) + self.most_steps
        self.makes_progress = True
        while self.live:
            self.dispatch()
            self.learn()
            self.check_served(most_steps)
        self.check_idle()

    # -- what must hold -----------------------------------------------------------------------------------------------

    @property
    def most_steps(self) -> int:
        """Steps within which any sane policy has served all that arrived so far, however often it preempts."""
        return 50 + 20 * sum(request.token_limit for request in self._asked)

    def check_served(self, most_steps: int) -> None:
        """Whether everybody is served by now, if this many steps were made."""
        if self.live and len(self.briefs) > most_steps:
            raise BrokenRule(Rule.STARVATION, f"after {len(self.briefs)} steps {self._unserved()} not served")

    def check_idle(self) -> None:
        """What holds when nobody is left: nothing is owned, and workers forget everybody by the next step.

        That step is one of a further request, since worlds ask for none while nobody is live.
        """
        cache = self.scheduler.kv_cache
        if cache.num_free_blocks != cache.num_blocks:
            num_owned = cache.num_blocks - cache.num_free_blocks
            raise BrokenRule(Rule.BLOCKS, f"nobody is left and {num_owned} blocks are owned")
        most_steps = len(self.briefs) + self.most_steps
        if self.arrive(Request(ONE_MORE, self.now, [0], max_tokens=1)):  # it is refused if the cache holds one token
            while self.live:
                self.dispatch()
                self.learn()
                self.check_served(most_steps)
        cache.reset()
        check_blocks(cache, [])

    def check(self) -> None:
        """What holds between any two calls."""
        scheduler = self.scheduler
        check_blocks(self.scheduler.kv_cache, self.live.values())
        running = self._holding_slots()
        waiting = [request for request in self.live.values() if request.status is not Status.RUNNING]
        if len(running) > self.limits.max_num_seqs:
            raise BrokenRule(Rule.SLOTS, f"{len(running)} requests run, and max_num_seqs={self.limits.max_num_seqs}")
        if (scheduler.num_running, scheduler.num_waiting) != (len(running), len(waiting)):
            raise BrokenRule(
                Rule.STATE,
                f"num_running={scheduler.num_running} and num_waiting={scheduler.num_waiting}, "
                f"and {len(running)} requests run and {len(waiting)} wait",
            )
        if isinstance(scheduler, Scheduler):
            listed = sorted(map(id, scheduler.running)), sorted(map(id, scheduler.waiting))
            if listed != (sorted(map(id, running)), sorted(map(id, waiting))):
                raise BrokenRule(
                    Rule.STATE, "the lists of running and waiting requests are not those that run and wait"
                )
        for request in self.live.values():
            check_request(request, self._outputs[request])
        check_counters(scheduler.kv_cache, [*self.live.values(), *self.finished])

    def snapshot(self) -> Any:
        """All that a call which fails must leave as it was, as far as anybody can see it, in a form to compare."""
        scheduler, cache = self.scheduler, self.scheduler.kv_cache
        return (
            [cache.num_owners(block_id) for block_id in range(cache.num_blocks)],
            (cache.num_free_blocks, cache.num_lookup_tokens, cache.num_hit_tokens, cache.num_rehit_tokens),
            [(name, r.status, r.block_ids.copy(), r.num_computed_tokens) for name, r in self.live.items()],
            (scheduler.num_running, scheduler.num_waiting),
            [request.request_id for request in scheduler.waiting] if isinstance(scheduler, Scheduler) else None,
        )

    def _holding_slots(self) -> list[Request]:
        return [request for request in self.live.values() if request.status is Status.RUNNING]

    def _unserved(self) -> str:
        names = list(self.live)
        return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} still"

    def _check_step(self, output: SchedulerOutput) -> None:
        limits, scheduled = self.limits, output.num_scheduled_tokens
        num_tokens = max(sum(scheduled.values()), output.total_num_scheduled_tokens)
        if num_tokens > limits.token_budget:
            raise BrokenRule(
                Rule.BUDGET, f"{num_tokens} tokens are to be computed, and token_budget={limits.token_budget}"
            )
        if self.makes_progress and self.live and not self.in_flight and not scheduled:
            left_out = any(request.finish_reason is not FinishReason.ABORT for request in self.finished)
            raise BrokenRule(
                Rule.STARVATION if left_out else Rule.PROGRESS, f"nothing is scheduled, {self._unserved()} live"
            )
        prefills, decode_contexts, due = [], [], []
        for name, tokens in scheduled.items():
            request = self.live.get(name)
            if request is None or request.status is not Status.RUNNING:
                raise BrokenRule(Rule.BATCH, f"{name} is scheduled, and is {request or 'nobody that is live'}")
            if name in self._computing:
                raise BrokenRule(Rule.BATCH, f"{name} is scheduled while a step in flight computes it")
            if type(tokens) is not int or not 0 < tokens <= request.num_remaining_tokens:
                raise BrokenRule(
                    Rule.BATCH, f"{name} is to compute {tokens!r} tokens and has {request.num_remaining_tokens} left"
                )
            computed = request.num_computed_tokens
            if computed + tokens == request.num_tokens:
                due.append(name)
            if tokens == 1 and computed + 1 == request.num_tokens and request.output_token_ids:
                decode_contexts.append(computed)
            else:
                prefills.append((tokens, computed))
        if output.sampled_ids != due:
            raise BrokenRule(
                Rule.SAMPLING, f"{output.sampled_ids} are to sample, and {due} have nothing left to compute"
            )
        shape = output.shape
        if (shape.prefills, sorted(shape.decode_contexts)) != (prefills, sorted(decode_contexts)) or (
            shape.num_sampled != len(due)
        ):
            raise BrokenRule(Rule.BATCH, f"the step's shape {shape} is not that of its batch {dict(scheduled)}")

    def _check_worker(self) -> None:
        """The worker, who saw only differences, knows of each running request what the scheduler knows."""
        in_flight = {
            (output.step, request_id): num_tokens
            for output, _ in self.in_flight
            for request_id, num_tokens in output.num_scheduled_tokens.items()
        }
        running = self._holding_slots()
        for request in running:
            row, name = self._worker.rows.get(request.request_id), request.request_id
            ahead = in_flight[self._computing[name], name] if name in self._computing else 0
            known = row and (row.block_ids, row.num_computed_tokens)
            if known != (request.block_ids, request.num_computed_tokens + ahead):
                raise BrokenRule(
                    Rule.BLOCKS,
                    f"{request!r} owns the blocks {request.block_ids}; workers know (blocks, computed) {known}",
                )
        owning = [request_id for request_id, row in self._worker.rows.items() if row.block_ids]
        if sorted(owning) != sorted(request.request_id for request in running):
            raise BrokenRule(Rule.BLOCKS, f"workers know blocks of {owning}, and others run")

    def _ended(self, request: Request, reason: FinishReason | None) -> None:
        self.finished.append(request)
        output, name = self._outputs[request], request.request_id
        if request.output_token_ids != output or output != continuation(request, self._prompts[request], len(output)):
            raise BrokenRule(Rule.TOKENS, f"{name} ended with {request.output_token_ids}, and {output} was sampled")
        if Arrival.of(request) != self._asked[request]:
            raise BrokenRule(Rule.STATE, f"what the client of {name} asked for was changed")
        state = request.status, request.finish_reason, request.finish_time
        if state != (Status.FINISHED, reason, self.now) or request.block_ids:
            raise BrokenRule(Rule.ENDING, f"{name} ended, and is {state} with the blocks {request.block_ids}")
