"""What happens to a scheduler under test: limits, and requests that come and go; drawn, or written by hand."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any

from schedulers.request import SLO, Request
from schedulers.scheduler import Limits

#: Every prompt is the start of one of these, perhaps with another last token, so that many share prefixes.
CONVERSATIONS = ((0,) * 40, (0, 1) * 20, (0,) * 8 + (1,) * 8 + (2,) * 24)

#: The token that ends the output of a request that stops by itself; one in six that are sampled.
EOS = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a scenario. Times are in seconds; the n-th step without a pause before it lasts from n - 1 to n.

    Attributes:
        arrives_s: when it is handed over; during a step, if it is no whole number.
        aborted_s: when its client cancels it, if it has not ended by then.
        stops: its output may end before max_tokens, by EOS.
        is_counted: its prompt is only a number of tokens and the names of its full blocks, as in a simulation.
    """

    name: str
    prompt: tuple[int, ...] = (0,)
    max_tokens: int | None = 1
    arrives_s: float = 0.0
    aborted_s: float | None = None
    priority: int = 0
    stops: bool = False
    min_tokens: int = 0
    client_id: str = ""
    session_id: str = ""
    slo: SLO | None = None
    predicted_output_tokens: float | None = None
    cache_salt: str = ""
    prompt_logprobs: bool = False
    is_counted: bool = False

    def __repr__(self) -> str:
        return f"Job({', '.join([repr(self.name), *(f'{name}={value!r}' for name, value in self.unusual().items())])})"

    def unusual(self) -> dict[str, Any]:
        """The fields that differ from their defaults, without the name."""
        given = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {field.name: given[field.name] for field in fields(self)[1:] if given[field.name] != field.default}

    def request(self, now: float, block_size: int) -> Request:
        """The request as its client makes it at `now`."""
        prompt: dict[str, Any] = {"prompt_token_ids": list(self.prompt)}
        if self.is_counted:
            ends = range(block_size, len(self.prompt) + 1, block_size)
            names = [self.prompt[:end] for end in ends]
            prompt = {"num_prompt_tokens": len(self.prompt), "prompt_block_hashes": names}
        return Request(
            self.name,
            now,
            **prompt,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            eos_token_id=EOS if self.stops else None,
            priority=self.priority,
            client_id=self.client_id,
            session_id=self.session_id,
            slo=self.slo,
            predicted_output_tokens=self.predicted_output_tokens,
            cache_salt=self.cache_salt,
            prompt_logprobs=self.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A finite workload on a tiny engine.

    Attributes:
        jobs: in the order in which those that arrive at the same time are handed over.
        seed: handed to the policy.
    """

    limits: Limits
    jobs: tuple[Job, ...]
    seed: int = 0

    def __str__(self) -> str:
        """The limits in a line, and the jobs as a table."""
        limits = " ".join(f"{field.name}={getattr(self.limits, field.name)}" for field in fields(self.limits))
        rows = [_row(job, self.limits.prefix_caching) for job in self.jobs]
        shown = list(dict.fromkeys(key for row in rows for key in row))
        table = [shown, *([row.get(key, "-") for key in shown] for row in rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(shown))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
        return "\n".join([f"limits: {limits}", "", *(line.rstrip() for line in lines)])


def _row(job: Job, prefix_caching: bool) -> dict[str, str]:
    """A job's line of the table: column to cell; rare columns are there only where they say something."""
    row = {
        "request": job.name,
        "arrives": f"{job.arrives_s:g} s",
        "prompt tokens": str(len(job.prompt)),
        "output tokens": "no limit" if job.max_tokens is None else f"{job.max_tokens}",
        "priority": str(job.priority),
        "aborted": "-" if job.aborted_s is None else f"{job.aborted_s:g} s",
    }
    if prefix_caching:
        row["prompt"] = " ".join(map(str, job.prompt))
    further = {"stops", "min_tokens", "client_id", "session_id", "slo", "predicted_output_tokens", "cache_salt"}
    further |= {"prompt_logprobs", "is_counted"}
    return row | {key: str(value) for key, value in job.unusual().items() if key in further}


def draw(seed: int, number: int) -> Scenario:
    """Scenario `number` of a seed: a cache so small, and prompts so alike, that everything happens all the time."""
    chance = random.Random(f"{seed}/{number}")
    limits = Limits(
        token_budget=chance.choice([1, 3, 5, 8, 8, 13, 30]),
        max_num_seqs=chance.randint(1, 6),
        num_blocks=chance.choice([2, 3, 5, 8, 12, 12, 20]),
        block_size=chance.randint(1, 4),
        max_model_len=chance.choice([12, 30, 1000]),
        prefix_caching=chance.random() < 0.75,
    )
    longest = min(limits.max_request_tokens, 20)
    pause = chance.choice([0, 0, 1, 2, 6])
    now = 0.0
    jobs = []
    for index in range(chance.choice([1, 2, 3, 4, 6, 8, 10])):
        now += chance.randint(0, 2 * pause) / 2
        jobs.append(_draw_job(chance, f"r{index}", now, longest))
    return Scenario(limits, tuple(jobs), seed=number)


def _draw_job(chance: random.Random, name: str, now: float, longest: int) -> Job:
    prompt = chance.choice(CONVERSATIONS)[: chance.randint(1, longest)]
    if chance.random() < 0.5:
        prompt = (*prompt[:-1], chance.randint(0, 5))
    max_tokens = None if chance.random() < 0.1 else chance.randint(1, max(longest // 2, 1))
    return Job(
        name,
        prompt,
        max_tokens,
        now,
        aborted_s=now + chance.randint(0, 16) / 2 if chance.random() < 0.15 else None,
        priority=chance.randint(0, 2),
        stops=chance.random() < 0.3,
        min_tokens=chance.randint(0, max_tokens or 4) if chance.random() < 0.2 else 0,
        client_id=chance.choice(["", "ann", "bob"]),
        session_id=chance.choice(["", "", "talk"]),
        slo=chance.choice([None, SLO(ttft_s=5.0), SLO(ttft_s=2.0, tpot_s=1.5)]),
        predicted_output_tokens=chance.choice([None, 1.0, 4.0, 9.5]),
        cache_salt=chance.choice(["", "", "", "salt"]),
        prompt_logprobs=chance.random() < 0.1,
        is_counted=chance.random() < 0.25,
    )
