"""The runner under the real schedulers: the same tokens as transformers, whatever happens on the way."""

from __future__ import annotations

import os
import random
from functools import cache
from typing import Any

import pytest
import torch

from real.models import load_model
from real.models.decoder import Model
from real.sampling_params import SamplingParams
from schedulers import (
    FCFS,
    Batch,
    ChunkedPrefill,
    FinishReason,
    Limits,
    Priority,
    Scheduler,
    SchedulerError,
    SchedulerOutput,
    Static,
)
from tests.real.drive import (
    EOS,
    VOCAB,
    Outcome,
    make_request,
    make_runner,
    serve,
    smollm2_in_float32,
    smollm2_of_transformers,
)
from tests.real.tiny_model import write_tiny_model
from tests.schedulers.chaotic import Chaotic

POLICIES = [ChunkedPrefill, FCFS, Static, Priority]

#: The whole proof of issue 3, "It must show" a: TWINSERVE_LONG=1; otherwise a part of it that takes seconds.
LONG = bool(os.environ.get("TWINSERVE_LONG"))
NUM_PROMPTS, NUM_TOKENS = (20, 64) if LONG else (5, 12)


def prompts(vocab: int, num: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Prompts of uneven lengths; every second begins like the one before it."""
    rng = random.Random(seed)
    made: list[list[int]] = []
    for index in range(num):
        prompt = [rng.randrange(3, vocab) for _ in range(rng.randrange(1, longest))]
        if index % 2:
            shared = made[-1] + [rng.randrange(3, vocab) for _ in range(20)]
            prompt = shared[: longest // 2] + prompt[:5]
        made.append(prompt)
    return made


# -- SmolLM2 against transformers -------------------------------------------------------------------------------------


@cache
def generated() -> list[tuple[list[int], list[int]]]:
    """Prompts, and what transformers' generate makes of each, alone and greedy."""
    model = smollm2_of_transformers()
    pairs = []
    for prompt in prompts(40_000, NUM_PROMPTS, 60):
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=EOS,
        )
        pairs.append((prompt, output[0, len(prompt) :].tolist()))
    return pairs


def serve_smollm2(scheduler: Scheduler, steps_between: int = 0) -> Outcome:
    limits = scheduler.limits
    # generate's min_new_tokens forbids EOS, as min_tokens does.
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS)
    requests = [
        make_request(str(index), prompt, params, EOS, arrival=float(index))
        for index, (prompt, _) in enumerate(generated())
    ]
    for request in requests:
        request.priority = -int(request.request_id)
    outcome = serve(
        make_runner(smollm2_in_float32(), limits.num_blocks, limits.block_size), scheduler, requests, steps_between
    )
    for request, (_, expected) in zip(requests, generated(), strict=True):
        assert request.output_token_ids == expected
    return outcome


@pytest.mark.parametrize("policy", POLICIES)
def test_greedy_tokens_are_those_of_transformers_with_everything_at_once(policy: type[Scheduler]) -> None:
    """Batched, in chunks, with prefix hits, and with a cache so small that requests are preempted."""
    budget = 2048 if policy is Static else 24  # whole prompts make a batch; a small budget would leave it room to grow
    num_blocks = 40 if LONG else 26
    outcome = serve_smollm2(policy(Limits(budget, 16, num_blocks, block_size=4)), steps_between=2)
    assert outcome.num_preemptions > 0
    assert outcome.num_cached_tokens > 0


@pytest.mark.parametrize("policy", POLICIES if LONG else [ChunkedPrefill])
def test_greedy_tokens_are_those_of_transformers_one_request_at_a_time(policy: type[Scheduler]) -> None:
    serve_smollm2(policy(Limits(2048, 1, 200, prefix_caching=False)))


@pytest.mark.skipif(not LONG, reason="TWINSERVE_LONG=1 runs the long proofs")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(2048, 32, 400, prefix_caching=False), id="batched"),
        pytest.param(Limits(16, 32, 400, prefix_caching=False), id="chunked"),
        pytest.param(Limits(2048, 32, 400, block_size=4), id="prefix hits"),
        pytest.param(Limits(2048, 32, 40, block_size=4, prefix_caching=False), id="preempted"),
    ],
)
def test_greedy_tokens_are_those_of_transformers_in_every_single_way(policy: type[Scheduler], limits: Limits) -> None:
    serve_smollm2(policy(limits))


# -- a small random Llama ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    """A tiny Llama by transformers, and ours from its folder."""
    folder = tmp_path_factory.mktemp("tiny")
    model = write_tiny_model(folder)
    return model, load_model(str(folder), dtype=torch.float32)


@pytest.fixture
def model(reference: tuple[Any, Model]) -> Model:
    return reference[1]


def varied_params() -> list[SamplingParams]:
    """One of each kind, and some that combine them."""
    shared = {"max_tokens": 20, "ignore_eos": True}
    return [
        SamplingParams(temperature=0.0, **shared),
        SamplingParams(seed=1, **shared),
        SamplingParams(seed=1, top_p=0.8, top_k=20, **shared),
        SamplingParams(temperature=1.7, min_p=0.02, frequency_penalty=1.0, **shared),
        SamplingParams(temperature=0.0, repetition_penalty=1.5, presence_penalty=1.0, **shared),
        SamplingParams(temperature=0.7, bad_words_token_ids=[[5], [7, 9]], allowed_token_ids=range(40), **shared),
        SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=2, **shared),
        SamplingParams(seed=9, logit_bias={3: 5.0}, prompt_logprobs=0, **shared),
        SamplingParams(seed=4, forced_length=11, max_tokens=20),
    ]


def serve_varied(model: Model, scheduler: Scheduler, order: list[int] | None = None, steps_between: int = 0) -> Outcome:
    every = list(zip(prompts(VOCAB, 9, 30), varied_params(), strict=True))
    requests = [make_request(str(index), *every[index], EOS, arrival=float(index)) for index in order or range(9)]
    runner = make_runner(model, scheduler.limits.num_blocks, scheduler.limits.block_size)
    return serve(runner, scheduler, requests, steps_between)


@pytest.fixture(scope="module")
def alone(reference: tuple[Any, Model]) -> Outcome:
    """Each request served with nobody beside it."""
    return serve_varied(reference[1], FCFS(Limits(1000, 1, 64, prefix_caching=False)))


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    assert outcome.tokens == expected.tokens
    for kind in ("logprobs", "prompt_logprobs"):
        found, wanted = getattr(outcome, kind), getattr(expected, kind)
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert [entry.token_ids for entry in found[name]] == [entry.token_ids for entry in wanted[name]]
            for entry, other in zip(found[name], wanted[name], strict=True):
                assert entry.logprobs == pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("budget", "num_blocks"), [(7, 200), (300, 200), (60, 17)])
def test_a_request_gets_the_same_tokens_in_any_company(
    model: Model, alone: Outcome, policy: type[Scheduler], budget: int, num_blocks: int
) -> None:
    """Sampling rules, seeds and log-probabilities included; in chunks, with prefix hits, and preempted."""
    outcome = serve_varied(model, policy(Limits(budget, 9, num_blocks, block_size=4)), [8, 3, 5, 1, 0, 7, 2, 4, 6])
    assert_same(outcome, alone)
    assert (outcome.num_preemptions > 0) == (num_blocks == 17)


@pytest.mark.parametrize("seed", range(6))
def test_a_policy_that_preempts_at_random_changes_no_token(model: Model, alone: Outcome, seed: int) -> None:
    scheduler = Chaotic(Limits(12, 5, 20, block_size=4), seed=seed)
    steps = iter(range(400))
    compose = scheduler.compose

    def calm_in_the_end(batch: Batch, now: float) -> None:
        scheduler.calm = next(steps, None) is None
        compose(batch, now)

    scheduler.compose = calm_in_the_end
    outcome = serve_varied(model, scheduler, steps_between=3)
    assert outcome.num_preemptions > 5
    assert_same(outcome, alone)


def test_logprobs_are_those_of_transformers_for_prompt_and_output(reference: tuple[Any, Model]) -> None:
    theirs, model = reference
    scheduler = ChunkedPrefill(Limits(5, 4, 64, block_size=4))
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2, prompt_logprobs=3)
    prompt = prompts(VOCAB, 1, 200)[0]
    assert len(prompt) > 20
    outcome = serve(make_runner(model, 64, 4), scheduler, [make_request("a", prompt, params, EOS)])
    whole = prompt + outcome.tokens["a"]
    expected = theirs(torch.tensor([whole])).logits[0].log_softmax(-1)
    found = outcome.prompt_logprobs["a"] + outcome.logprobs["a"]
    assert len(found) == len(whole) - 1
    for place, entry in enumerate(found):
        top = expected[place].topk(3 if place < len(prompt) - 1 else 2).indices.tolist()
        assert entry.token_ids == [whole[place + 1], *top]
        assert entry.logprobs == pytest.approx(expected[place, entry.token_ids].tolist(), abs=1e-3)
        assert entry.rank == 1 + (expected[place] > expected[place, whole[place + 1]]).sum()


def test_a_prompt_of_one_token_has_no_logprobs_but_an_empty_list(model: Model) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    outcome = serve(
        make_runner(model, 4, 4), FCFS(Limits(8, 1, 4, block_size=4)), [make_request("a", [5], params, EOS)]
    )
    assert outcome.prompt_logprobs == {"a": []}


@pytest.mark.parametrize("budget", [4, 5, 6, 7])
def test_prompt_logprobs_come_with_the_first_token_wherever_the_last_chunk_begins(model: Model, budget: int) -> None:
    runner, scheduler = make_runner(model, 16, 4), ChunkedPrefill(Limits(budget, 1, 16, block_size=4))
    scheduler.add_request(make_request("a", range(7), SamplingParams(max_tokens=1, prompt_logprobs=0), EOS))
    while scheduler.num_running or scheduler.num_waiting:
        output = scheduler.schedule(0.0)
        result = runner.execute_model(output)
        scheduler.update_from_output(output, result, 0.0)
        assert result.prompt_logprobs.keys() == result.sampled_token_ids.keys()
    assert len(result.prompt_logprobs["a"]) == 6


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_forced_length_ends_the_output_with_eos_as_its_last_token(model: Model, length: int) -> None:
    request = make_request("a", [5, 6, 7], SamplingParams(forced_length=length, max_tokens=50), EOS)
    serve(make_runner(model, 64, 4), ChunkedPrefill(Limits(8, 4, 64, block_size=4)), [request])
    assert request.num_output_tokens == length
    assert request.output_token_ids.index(EOS) == length - 1
    assert request.finish_reason is FinishReason.STOP


def test_an_id_that_ended_can_be_used_again_in_the_very_next_step(model: Model) -> None:
    scheduler = FCFS(Limits(64, 4, 32, block_size=4, prefix_caching=False))
    runner = make_runner(model, 32, 4)
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, prompt_logprobs=0)

    def step() -> SchedulerOutput:
        output = scheduler.schedule(0.0)
        scheduler.update_from_output(output, runner.execute_model(output), 0.0)
        return output

    scheduler.add_request(make_request("a", [5, 6, 7], params, EOS))
    step()
    scheduler.abort_request("a", 0.0)
    again = make_request("a", [8, 9], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True), EOS)
    scheduler.add_request(again)
    output = step()
    assert output.finished_ids == ["a"]
    assert [new.request_id for new in output.new_requests] == ["a"]
    while scheduler.num_running:
        step()
    fresh = make_request("b", [8, 9], again.sampling, EOS)
    serve(make_runner(model, 32, 4), FCFS(Limits(64, 4, 32, block_size=4)), [fresh])
    assert again.output_token_ids == fresh.output_token_ids


def test_a_step_without_tokens_only_takes_over_the_difference(model: Model) -> None:
    scheduler = FCFS(Limits(64, 4, 32, block_size=4))
    runner = make_runner(model, 32, 4)
    scheduler.add_request(make_request("a", [5, 6, 7], SamplingParams(), EOS))
    runner.execute_model(scheduler.schedule(0.0))
    assert len(runner.batch) == 1
    scheduler.abort_request("a", 0.0)
    assert runner.execute_model(scheduler.schedule(0.0)).sampled_token_ids == {}
    assert len(runner.batch) == 0


def test_a_scheduler_that_counts_other_tokens_is_told_so_at_once(model: Model) -> None:
    scheduler = ChunkedPrefill(Limits(64, 4, 32, block_size=4))
    runner = make_runner(model, 32, 4)
    scheduler.add_request(make_request("a", [5, 6, 7], SamplingParams(), EOS))
    output = scheduler.schedule(0.0)
    output.num_scheduled_tokens["a"] = 2
    with pytest.raises(SchedulerError, match="disagree about how many tokens"):
        runner.execute_model(output)


def test_a_step_that_speaks_of_an_unknown_request_is_refused_by_name(model: Model) -> None:
    scheduler = ChunkedPrefill(Limits(64, 4, 32, block_size=4))
    scheduler.add_request(make_request("a", [5, 6, 7], SamplingParams(), EOS))
    output = scheduler.schedule(0.0)
    output.new_requests.clear()
    with pytest.raises(SchedulerError, match="'a' is in a step, but this worker was never told"):
        make_runner(model, 32, 4).execute_model(output)


def test_prompt_logprobs_with_a_cached_prompt_are_refused_rather_than_wrong(model: Model) -> None:
    runner = make_runner(model, 32, 4)
    scheduler = ChunkedPrefill(Limits(64, 4, 32, block_size=4))
    prompt = list(range(5, 25))
    serve(runner, scheduler, [make_request("a", prompt, SamplingParams(max_tokens=1), EOS)])
    wrong = make_request("b", prompt, SamplingParams(max_tokens=1, prompt_logprobs=1), EOS)
    wrong.prompt_logprobs = False
    with pytest.raises(SchedulerError, match="prompt_logprobs=True"):
        serve(runner, scheduler, [wrong])
