"""One step being composed: the operations a policy has, which keep every invariant whatever the policy does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING

from schedulers.errors import SchedulerError
from schedulers.request import Request, Status
from schedulers.step import BatchShape, NewRequest, ResumedRequest, SchedulerOutput

if TYPE_CHECKING:
    from schedulers.scheduler import Scheduler

RUNNING, WAITING, PREEMPTED = Status.RUNNING, Status.WAITING, Status.PREEMPTED


class Batch:
    """The step that a policy composes.

    `schedule` and `preempt` are all a policy needs; what they cannot do without breaking the token budget, the sequence
    limit, the block count or a request's progress, they do not do, and `schedule` returns 0.
    """

    def __init__(self, scheduler: Scheduler, step: int, now: float) -> None:
        """Open step number `step`; made by `Scheduler.schedule`."""
        self._scheduler = scheduler
        self._limits = scheduler.limits
        self._live = scheduler.live
        self._kv = scheduler.kv_cache
        self.step = step
        self.now = now
        #: Tokens that the step can still take.
        self.budget_left = scheduler.limits.token_budget
        #: Tokens to compute, by request id, in batch order.
        self.num_scheduled_tokens: dict[str, int] = {}
        #: Calls of `schedule` that could not schedule anything; a policy that makes too many is looping.
        self._vain_calls = 0
        #: Requests that ran before this step and lost their place in it.
        self.preempted: list[Request] = []
        #: Those, and requests admitted and sent back within this step; none can come back before the next.
        self._barred: set[str] = set()
        self._sampled_ids: list[str] = []
        self._decode_contexts: list[int] = []
        self._prefills: dict[str, tuple[int, int]] = {}
        self._new_block_ids: dict[str, list[int]] = {}
        #: Status before this step of the requests it admitted.
        self._admitted: dict[Request, Status] = {}

    # -- what a policy can ask ----------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Request]:
        """Requests that hold a slot, in the order they were admitted; a copy, safe to walk while preempting."""
        return self._scheduler.running.copy()

    @property
    def waiting(self) -> Iterable[Request]:
        """Requests without a slot, in the policy's order; safe to walk while scheduling and preempting."""
        return self._scheduler.waiting

    @property
    def is_empty(self) -> bool:
        """Nothing is scheduled yet."""
        return not self.num_scheduled_tokens

    @property
    def slots_left(self) -> int:
        """Requests that can still be admitted."""
        return self._limits.max_num_seqs - len(self._scheduler.running)

    @property
    def has_room(self) -> bool:
        """Whether anybody could be admitted without displacing others: budget, a slot and a block are left."""
        return self.budget_left > 0 and self.slots_left > 0 and self.num_free_blocks > 0

    @property
    def num_free_blocks(self) -> int:
        """KV blocks that nobody owns."""
        return self._kv.num_free_blocks

    def num_blocks(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self._limits.block_size)

    def num_cached_tokens(self, request: Request) -> int:
        """Tokens of a waiting request that the prefix cache would spare it now."""
        return self._kv.num_cached_tokens(request)

    # -- what a policy can do -----------------------------------------------------------------------------------------

    def schedule(self, request: Request, max_tokens: int | None = None, *, whole: bool = False) -> int:
        """Compute tokens of `request` in this step; a waiting request is admitted first.

        When blocks (or, for a waiting request, slots) are short, the policy's `victim` says who yields. Nobody is
        preempted unless that makes enough room. A running request for which nobody yields gives up its own place.

        Args:
            request: running or waiting.
            max_tokens: no more than this many (a chunk).
            whole: all that is left to compute or nothing. Only what exceeds the budget of an entire step is computed in
                chunks, each alone in its step, since otherwise it could never be.

        Returns:
            Tokens scheduled; 0 if the request cannot run in this step.
        """
        request_id = request.request_id
        if self._live.get(request_id) is not request:
            raise SchedulerError(
                f"step {self.step}: {request!r} cannot be scheduled: it is no request of this scheduler"
            )
        if request.status is not RUNNING:
            return self._schedule_waiting(request, max_tokens, whole)
        if request.in_step:
            return self._vain()
        computed = request.num_computed_tokens
        num_tokens = request.num_tokens - computed
        if num_tokens > self.budget_left or max_tokens is not None:
            num_tokens = self._clip(num_tokens, max_tokens, whole)
            if not num_tokens:
                return self._vain()
        end = computed + num_tokens
        if end >= request.block_capacity and not self._grow(request, end):
            return 0
        self.budget_left -= num_tokens
        request.in_step = self.step
        self.num_scheduled_tokens[request_id] = num_tokens
        if end == request.num_tokens:
            self._sampled_ids.append(request_id)
            if num_tokens == 1 and end > request.num_prompt_tokens:
                self._decode_contexts.append(computed)
                return 1
        self._prefills[request_id] = (num_tokens, computed)
        return num_tokens

    def preempt(self, request: Request) -> None:
        """Take the slot and all blocks from a running request; what it was to compute in this step is undone.

        Its tokens are kept and computed again when it comes back (recomputation). Requests that share, in this very
        step, a prefix that it was about to compute, lose their place with it.
        """
        if request.status is not RUNNING or self._live.get(request.request_id) is not request:
            raise SchedulerError(f"step {self.step}: {request!r} cannot be preempted: it is not running here")
        if request.in_step == self.step:
            self._undo(request)
        request.in_step = 0
        self._kv.name_own(request)
        self._kv.free(request)
        self._scheduler.running.remove(request)
        request.num_computed_tokens = 0
        former = self._admitted.pop(request, None)
        if former is None:
            request.status = PREEMPTED
            request.num_preemptions += 1
            self.preempted.append(request)
        else:
            request.status = former
            if former is WAITING:
                request.first_scheduled_time = None
        self._barred.add(request.request_id)
        self._scheduler.enqueue(request, self.now)

    # -- the output ---------------------------------------------------------------------------------------------------

    def output(self, finished_ids: list[str]) -> SchedulerOutput:
        """The composed step as the difference that workers need."""
        new, resumed = [], []
        for request, former in self._admitted.items():
            self._kv.count_hit(request)
            num_cached = request.num_computed_tokens
            if former is WAITING:
                new.append(
                    NewRequest(
                        request.request_id,
                        request.prompt_token_ids,
                        request.sampling,
                        request.block_ids.copy(),
                        num_cached,
                    )
                )
            else:
                resumed.append(ResumedRequest(request.request_id, request.block_ids.copy(), num_cached))
        return SchedulerOutput(
            step=self.step,
            num_scheduled_tokens=self.num_scheduled_tokens,
            sampled_ids=self._sampled_ids,
            new_requests=new,
            resumed_requests=resumed,
            new_block_ids=self._new_block_ids,
            finished_ids=finished_ids,
            preempted_ids=[request.request_id for request in self.preempted],
            shape=BatchShape(list(self._prefills.values()), self._decode_contexts, len(self._sampled_ids)),
        )

    # -- inside -------------------------------------------------------------------------------------------------------

    def _schedule_waiting(self, request: Request, max_tokens: int | None, whole: bool) -> int:
        if self.budget_left < 1 or request.request_id in self._barred:
            return self._vain()
        for may_preempt in (True, False):
            prefix = self._kv.find_prefix(request)
            num_cached = len(prefix) * self._limits.block_size
            num_tokens = self._clip(request.num_tokens - num_cached, max_tokens, whole)
            if not num_tokens:
                return self._vain()
            num_blocks = self.num_blocks(num_cached + num_tokens) - len(prefix)
            missing = num_blocks + self._kv.num_free_among(prefix) - self._kv.num_free_blocks
            if missing <= 0 and self.slots_left > 0:
                break
            if not whole:
                max_tokens = num_tokens  # room is made for these, though the budget may grow by what is undone
            # Whoever yields may be computing that very prefix, so look it up again.
            if not (may_preempt and self._make_room(request, missing, self.slots_left < 1, prefix)):
                return self._vain()
        else:
            return self._vain()
        self._scheduler.waiting.remove(request)
        self._admitted[request] = request.status
        self._scheduler.running.append(request)
        request.status = RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = self.now
        self._kv.admit(request, prefix)
        scheduled = self.schedule(request, num_tokens)
        self._new_block_ids.pop(request.request_id, None)  # its whole table goes out with it
        return scheduled

    def _vain(self) -> int:
        self._vain_calls += 1
        num_requests = len(self._scheduler.running) + len(self._scheduler.waiting)
        if self._vain_calls > 1000 + 10 * num_requests:
            raise SchedulerError(
                f"step {self.step}: {type(self._scheduler).__name__} loops: {self._vain_calls} times it asked to "
                f"schedule requests that cannot run in this step, of which there are {num_requests}"
            )
        return 0

    def _clip(self, num_tokens: int, max_tokens: int | None, whole: bool) -> int:
        """How many of `num_tokens` the step can take."""
        if max_tokens is not None:
            try:
                max_tokens = index(max_tokens)
            except TypeError:
                raise SchedulerError(
                    f"step {self.step}: {type(self._scheduler).__name__} asks for {max_tokens!r} tokens; "
                    "it must be a whole number"
                ) from None
        if whole and num_tokens > self.budget_left:
            return self.budget_left if num_tokens > self._limits.token_budget and self.is_empty else 0
        if max_tokens is not None and max_tokens < num_tokens:
            num_tokens = max(max_tokens, 0)
        return min(num_tokens, self.budget_left)

    def _grow(self, request: Request, end: int) -> bool:
        """Give a running request blocks for `end` tokens, from those who yield or not at all."""
        num_owned = len(request.block_ids)
        if not self._kv.allocate(request, end):
            missing = self.num_blocks(end) - num_owned - self._kv.num_free_blocks
            if not self._make_room(request, missing, False, ()):
                self.preempt(request)
                return False
            self._kv.allocate(request, end)
        if len(request.block_ids) > num_owned:
            self._new_block_ids[request.request_id] = request.block_ids[num_owned:]
        return True

    def _make_room(self, request: Request, num_blocks: int, slot: bool, kept: Sequence[int]) -> bool:
        """Preempt as many as free `num_blocks` blocks (besides those in `kept`) and a slot; nobody if it won't do."""
        candidates = self.running
        victims: list[Request] = []
        owners_gone: Counter[int] = Counter(dict.fromkeys(kept, -1))
        while num_blocks > 0 or (slot and not victims):
            victim = self._scheduler.victim(candidates, request) if candidates else None
            if victim is None or victim is request:
                return False
            if victim not in candidates:
                why = "chosen already" if victim in [*victims, *self.preempted] else "not running"
                policy = type(self._scheduler).__name__
                raise SchedulerError(f"step {self.step}: {policy} chose {victim!r} as a victim, which is {why}")
            candidates.remove(victim)
            victims.append(victim)
            for block_id in victim.block_ids:
                owners_gone[block_id] += 1
                num_blocks -= owners_gone[block_id] == self._kv.num_owners(block_id)
        for victim in victims:
            if victim.status is RUNNING:  # not yet gone with another victim
                self.preempt(victim)
        return True

    def _undo(self, request: Request) -> None:
        """Take `request` out of this step."""
        unwritten = self._kv.blocks_filled_by_step(request)
        if any(self._kv.num_owners(block_id) > 1 for block_id in unwritten):
            shared = set(unwritten)
            for other in self.running:
                if other is not request and not shared.isdisjoint(other.block_ids):
                    self.preempt(other)
        self._kv.forget_filled_by_step(request)
        request_id = request.request_id
        self.budget_left += self.num_scheduled_tokens.pop(request_id)
        self._new_block_ids.pop(request_id, None)
        if request_id in self._sampled_ids:
            self._sampled_ids.remove(request_id)
        if not self._prefills.pop(request_id, None):
            self._decode_contexts.remove(request.num_computed_tokens)
