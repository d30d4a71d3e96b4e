"""Models for tests, and the loop that an engine core runs, without the engine around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch

from real.model_runner import ModelRunner
from real.models import load_model
from real.models.checkpoint import open_checkpoint
from real.models.decoder import Model
from real.results import RunnerResult, TokenLogprobs
from real.sampling_params import SamplingParams
from schedulers import Request, Scheduler
from tests.real.tiny_model import smollm2

CPU = torch.device("cpu")

#: Of the tiny Llama; SmolLM2's EOS is the same.
VOCAB, EOS = 199, 2


@cache
def smollm2_in_float32() -> Model:
    """SmolLM2-135M-Instruct; the test is skipped, saying so, where it is not installed."""
    return load_model(str(smollm2()), dtype=torch.float32)


@cache
def smollm2_of_transformers() -> Any:
    """The same weights computed by transformers, in the shape that its config.json on the Hub gives."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config).eval()
    checkpoint = open_checkpoint(str(smollm2()))  # transformers' own reader gives the same, in 15 s: see test_models.py
    model.model.load_state_dict({name: checkpoint.read(f"model.{name}") for name in model.model.state_dict()})
    return model


def make_runner(model: Model, num_blocks: int, block_size: int, seed: int = 0) -> ModelRunner:
    """A runner with an empty cache. Where nothing was written there are NaNs, which nothing may read."""
    shape = model.kv_cache_shape(num_blocks, block_size)
    caches = [torch.full(shape, torch.nan, dtype=model.dtype) for _ in range(model.config.num_layers)]
    return ModelRunner(model, caches, block_size, CPU, seed)


def make_request(
    name: str, prompt: Sequence[int], params: SamplingParams, eos: int | None, arrival: float = 0.0
) -> Request:
    """The request that a front makes from sampling parameters."""
    return Request(
        name,
        arrival,
        list(prompt),
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        eos_token_id=eos,
        ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids,
        prompt_logprobs=params.prompt_logprobs is not None,
        sampling=params,
    )


class Outcome:
    """What came out of a run, by request id."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        self.logprobs: dict[str, list[TokenLogprobs]] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}
        self.num_steps = 0

    @property
    def tokens(self) -> dict[str, list[int]]:
        return {name: request.output_token_ids for name, request in self.requests.items()}

    @property
    def num_preemptions(self) -> int:
        return sum(request.num_preemptions for request in self.requests.values())

    @property
    def num_cached_tokens(self) -> int:
        return sum(request.num_cached_tokens for request in self.requests.values())


def serve(runner: ModelRunner, scheduler: Scheduler, requests: Iterable[Request], steps_between: int = 0) -> Outcome:
    """Serve `requests` to their ends; one arrives every `steps_between` steps, or all at once."""
    outcome = Outcome()
    coming = list(requests)
    while coming or scheduler.num_running or scheduler.num_waiting:
        while coming and (not steps_between or outcome.num_steps >= steps_between * len(outcome.requests)):
            outcome.requests[coming[0].request_id] = coming[0]
            scheduler.add_request(coming.pop(0))
        outcome.num_steps += 1
        now = float(outcome.num_steps)
        output = scheduler.schedule(now)
        result = runner.execute_model(output)
        assert isinstance(result, RunnerResult)
        assert sorted(result.sampled_token_ids) == sorted(output.sampled_ids)
        scheduler.update_from_output(output, result, now)
        for name, found in result.logprobs.items():
            outcome.logprobs.setdefault(name, []).extend(found)
        for name, found in result.prompt_logprobs.items():
            assert name not in outcome.prompt_logprobs
            outcome.prompt_logprobs[name] = found
    runner.execute_model(scheduler.schedule(0.0))
    assert len(runner.batch) == 0
    scheduler.kv_cache.check_integrity([])
    return outcome
