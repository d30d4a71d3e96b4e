"""Runs a step on the model: takes over the difference, flattens the batch, computes it, samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.attention import AttentionMetadata
from real.input_batch import FlatBatch, InputBatch
from real.models.decoder import Model
from real.results import RunnerResult, TokenLogprobs
from real.sampler import Sampler, token_logprobs
from schedulers.errors import SchedulerError
from schedulers.step import SchedulerOutput

#: Prompt positions whose logits exist at once; a whole chunk's could exceed the model's own memory.
LOGPROB_ROWS = 128


@dataclass(slots=True)
class _PromptLogprobs:
    """The log-probabilities of a prompt, as far as it was computed."""

    count: int
    found: list[TokenLogprobs] = field(default_factory=list)


class ModelRunner:
    """Keeps the requests of a worker between steps and computes each step in one forward pass.

    It learns of requests from the differences alone, and appends what it samples to its own copy of their tokens.
    """

    def __init__(self, model: Model, kv_caches: list[Tensor], block_size: int, device: torch.device, seed: int) -> None:
        """Start without requests.

        Args:
            model: the loaded model.
            kv_caches: one for each layer.
            block_size: tokens in a KV block.
            device: where the model is.
            seed: of requests without a seed of their own, together with their ids.
        """
        self.model = model
        self._kv_caches = kv_caches
        self._device = device
        self.batch = InputBatch(block_size)
        self._sampler = Sampler(model.config.vocab_size, model.config.eos_token_ids, device, seed)
        self._prompt_logprobs: dict[str, _PromptLogprobs] = {}

    @torch.inference_mode()
    def execute_model(self, output: SchedulerOutput) -> RunnerResult:
        """Run one step; a step without tokens only takes over the difference.

        Raises:
            SchedulerError: the step speaks of requests or tokens that this runner does not know.
        """
        self._update(output)
        if not output.num_scheduled_tokens:
            return RunnerResult({})
        flat = self.batch.flatten(output)
        hidden = self._forward(flat)
        prompt_logprobs = self._collect_prompt_logprobs(flat, hidden) if self._prompt_logprobs else {}
        rows = flat.rows[flat.samples]
        if not len(rows):
            self.batch.advance(flat, flat.samples)
            return RunnerResult({}, prompt_logprobs=prompt_logprobs)
        last = torch.from_numpy(flat.query_start[1:][flat.samples] - 1).to(self._device)
        tokens, found = self._sampler.sample(self._logits(hidden[last]), rows, self.batch)
        self.batch.advance(flat, tokens)
        sampled_ids = [flat.request_ids[index] for index in flat.samples.tolist()]
        return RunnerResult(
            {request_id: [token] for request_id, token in zip(sampled_ids, tokens.tolist(), strict=True)},
            logprobs={sampled_ids[index]: [logprobs] for index, logprobs in found.items()},
            prompt_logprobs=prompt_logprobs,
        )

    def _update(self, output: SchedulerOutput) -> None:
        self.batch.update(output)
        for request_id in output.finished_ids:
            self._prompt_logprobs.pop(request_id, None)
        for new in output.new_requests:
            self._sampler.add(self.batch.row(new.request_id), new.request_id, new.sampling)
            if new.sampling.prompt_logprobs is not None:
                self._prompt_logprobs[new.request_id] = _PromptLogprobs(new.sampling.prompt_logprobs)

    def _forward(self, flat: FlatBatch) -> Tensor:
        """The last hidden states [tokens, hidden]."""
        metadata = AttentionMetadata(
            query_start=self._tensor(flat.query_start),
            context_lens=self._tensor(flat.context_lens),
            block_tables=self._tensor(flat.block_tables),
            slot_mapping=self._tensor(flat.slots),
            query_lens=flat.query_lens.tolist(),
            context_lens_list=flat.context_lens.tolist(),
            block_size=self.batch.block_size,
            num_decodes=flat.num_decodes,
        )
        token_ids, positions = self._tensor(flat.token_ids), self._tensor(flat.positions)
        return self.model.forward(token_ids, positions, self._kv_caches, metadata)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)

    def _collect_prompt_logprobs(self, flat: FlatBatch, hidden: Tensor) -> dict[str, list[TokenLogprobs]]:
        """Log-probabilities of the prompt tokens after those computed here; returned once a prompt is complete."""
        complete = {}
        for index, request_id in enumerate(flat.request_ids):
            progress = self._prompt_logprobs.get(request_id)
            if progress is None:
                continue
            row = flat.rows[index]
            end = int(flat.context_lens[index])
            start = end - int(flat.query_lens[index])
            if start > len(progress.found):
                raise SchedulerError(
                    f"request {request_id!r} wants log-probabilities of its prompt, but {start} tokens of it came from "
                    f"the prefix cache; it must be scheduled with prompt_logprobs=True"
                )
            last = int(self.batch.num_prompt_tokens[row]) - 1
            offset = int(flat.query_start[index]) - start
            for first in range(len(progress.found), min(end, last), LOGPROB_ROWS):
                stop = min(first + LOGPROB_ROWS, end, last)
                logits = self.model.logits(hidden[offset + first : offset + stop])
                targets = self.batch.token_ids[row, first + 1 : stop + 1].astype(np.int64)
                progress.found += token_logprobs(logits, targets, [progress.count] * len(targets))
            if end > last:  # not before a token is sampled, with which it is told
                complete[request_id] = self._prompt_logprobs.pop(request_id).found
        return complete

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
