"""What a client gets: the output of a request, whole or as it grows."""

from __future__ import annotations

from dataclasses import dataclass, field

from real.results import TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One output of a request (of `n`), or what a step added to it.

    Attributes:
        index: 0 to n - 1.
        text: without special tokens and stop strings, unless they were asked for.
        token_ids: as sampled, with the EOS or stop token that ended it.
        finish_reason: "stop" (EOS, a stop token or a stop string), "length" or "abort"; None while it grows.
        stop_reason: the stop string or stop token that ended it; None for EOS.
        logprobs: one for each of `token_ids`, if they were asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """The log-probability of the whole output, if `logprobs` were asked for."""
        return None if self.logprobs is None else sum(entry.logprobs[0] for entry in self.logprobs)

    def add(self, later: CompletionOutput) -> None:
        """Append what came after."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs


@dataclass(slots=True)
class RequestOutput:
    """The outputs of a request, or what was added to them since the last one that was handed out.

    Attributes:
        prompt: as given; None if token ids were.
        outputs: one for each of `n`, by index; of a part, those that have news.
        finished: all outputs have ended.
        num_cached_tokens: prompt tokens found in the prefix cache.
        prompt_logprobs: one for each prompt token but the first, if they were asked for; with the first part.
        error: why the engine refused the request; it is finished then.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None

    def add(self, later: RequestOutput) -> None:
        """Append what came after."""
        for output in later.outputs:
            mine = next((mine for mine in self.outputs if mine.index == output.index), None)
            if mine is None:
                self.outputs.append(output)
                self.outputs.sort(key=lambda output: output.index)
            else:
                mine.add(output)
        self.finished = later.finished
        self.num_cached_tokens += later.num_cached_tokens
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
        self.error = later.error
