"""The sampler against the definitions of its rules, and that no request can tell who else is in its batch."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real.input_batch import InputBatch, Longs
from real.results import TokenLogprobs
from real.sampler import Sampler
from real.sampling_params import SamplingParams, check_for_model
from real.sampling_rules import cut, draw, uniforms
from schedulers import BatchShape, InputError, NewRequest, SchedulerOutput
from tests.real.sampling_reference import Case, constrained, probabilities, survivors

VOCAB, EOS = 40, (2, 0)
CPU = torch.device("cpu")

tokens = st.integers(0, VOCAB - 1)
some_tokens = st.lists(tokens, max_size=4)


@st.composite
def params(draw: st.DrawFn, *, greedy: bool | None = None) -> SamplingParams:
    """Any combination of rules that leaves something to sample."""
    temperature = 0.0 if greedy else draw(st.sampled_from([0.3, 1.0, 2.0]))
    made = SamplingParams(
        max_tokens=None,
        temperature=temperature,
        top_k=draw(st.sampled_from([0, 0, 1, 3, 10, VOCAB])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.01])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0])),
        presence_penalty=draw(st.sampled_from([0.0, -1.5, 2.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.7, -0.3])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        logit_bias=draw(st.none() | st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=3)),
        allowed_token_ids=draw(st.none() | st.lists(tokens, min_size=1, max_size=10)),
        bad_words_token_ids=draw(st.lists(st.lists(tokens, min_size=1, max_size=3), max_size=4)),
        stop_token_ids=draw(some_tokens),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        ignore_eos=(ignore_eos := draw(st.booleans())),
        forced_length=None if ignore_eos else draw(st.sampled_from([None, None, 3, 5])),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        seed=draw(st.none() | st.integers(0, 5)),
    )
    try:
        check_for_model(made, VOCAB, EOS)
    except InputError:
        return SamplingParams(temperature=temperature, max_tokens=None)
    return made


@st.composite
def cases(draw: st.DrawFn, *, greedy: bool | None = None) -> Case:
    """A request some way into its output, its bad words begun now and then."""
    made = draw(params(greedy=greedy))
    output = draw(st.lists(tokens, max_size=4))
    if made.bad_words_token_ids and draw(st.booleans()):
        output += draw(st.sampled_from(made.bad_words_token_ids))[:-1]
    if made.forced_length is not None:
        output = output[: made.forced_length - 1]
    return Case(made, tuple(draw(st.lists(tokens, min_size=1, max_size=5))), tuple(output))


class Bench:
    """A sampler and an input batch with these requests, each in the row that it comes to."""

    def __init__(self, requests: Sequence[Case], first_row: int = 0, names: Sequence[str] | None = None) -> None:
        fillers = [Case(SamplingParams(), (1,), ())] * first_row
        names = [f"filler-{row}" for row in range(first_row)] + list(names or map(str, range(len(requests))))
        self.batch = InputBatch(block_size=4)
        self.sampler = Sampler(VOCAB, EOS, CPU, seed=7)
        new = [
            NewRequest(name, [*case.prompt, *case.output], case.params, [0], 0)
            for name, case in zip(names, [*fillers, *requests], strict=True)
        ]
        self.batch.update(SchedulerOutput(1, {}, [], new, [], {}, [], [], BatchShape()))
        self.rows = np.array([self.batch.row(name) for name in names[first_row:]])
        for name, case in zip(names, [*fillers, *requests], strict=True):
            row = self.batch.row(name)
            self.batch.num_prompt_tokens[row] = len(case.prompt)
            self.sampler.add(row, name, case.params)

    def sample(self, logits: torch.Tensor) -> tuple[Longs, dict[int, TokenLogprobs]]:
        return self.sampler.sample(logits.clone(), self.rows, self.batch)


def random_logits(seed: int, num_rows: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


@settings(max_examples=100)
@given(st.lists(cases(greedy=True), min_size=1, max_size=5), st.integers(0, 1000))
def test_a_greedy_token_is_the_likeliest_that_the_rules_leave(requests: list[Case], seed: int) -> None:
    logits = random_logits(seed, len(requests))
    chosen, _ = Bench(requests).sample(logits)
    for row, case in enumerate(requests):
        expected = constrained(logits[row].tolist(), case, EOS)
        if case.params.forced_length == len(case.output) + 1:
            assert chosen[row] == EOS[0]
        else:
            assert expected[chosen[row]] == pytest.approx(max(expected), abs=1e-4)


@settings(max_examples=100)
@given(st.lists(cases(), min_size=1, max_size=5), st.integers(0, 1000))
def test_a_drawn_token_survives_every_rule_and_is_where_its_number_falls(requests: list[Case], seed: int) -> None:
    logits = random_logits(seed, len(requests))
    bench = Bench(requests)
    chosen, _ = bench.sample(logits)
    for row, case in enumerate(requests):
        if case.params.forced_length == len(case.output) + 1:
            assert chosen[row] == EOS[0]
            continue
        probs = probabilities(constrained(logits[row].tolist(), case, EOS), case.params.temperature)
        least, most = (survivors(probs, case.params, slack) for slack in (-1e-5, 1e-5))
        assert chosen[row] in most
        if least == most:
            number = uniforms(bench.sampler._columns.seed[bench.rows[[row]]], np.array([len(case.output)]))[0]
            below = math.fsum(probs[token] for token in most if token < chosen[row])
            target = number * math.fsum(probs[token] for token in most)
            assert below - 1e-5 <= target <= below + probs[chosen[row]] + 1e-5


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 600), st.sampled_from([0.01, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.02, 1.0]))
    ),
    st.integers(0, 1000),
    st.sampled_from([0.1, 2.0, 20.0]),
    st.sampled_from([1, 16, 500]),
)
def test_the_cut_is_where_the_definitions_put_it_however_few_candidates_are_sorted(
    rules: list[tuple[int, float, float]], seed: int, scale: float, candidates: int
) -> None:
    rules = [*rules, (500, 1.0, 0.0)]
    probs = (torch.randn(len(rules), 500, generator=torch.Generator().manual_seed(seed)) * scale).softmax(-1)
    top_k, top_p, min_p = (torch.tensor(column)[:, None] for column in zip(*rules, strict=True))
    least = cut(probs, top_k.clamp(max=500), top_p, min_p, candidates)
    assert torch.equal(least, cut(probs, top_k.clamp(max=500), top_p, min_p, 500))  # else a batch could change a token
    for row, (k, p, m) in enumerate(rules):
        kept = set(torch.nonzero(probs[row] >= least[row])[:, 0].tolist())
        bounds = [
            survivors(probs[row].double().tolist(), SamplingParams(top_k=k, top_p=p, min_p=m), slack)
            for slack in (-1e-6, 1e-6)
        ]
        assert bounds[0] <= kept <= bounds[1]


def test_equal_probabilities_survive_together() -> None:
    probs = torch.tensor([[0.25, 0.25, 0.25, 0.25]])
    least = cut(probs, torch.tensor([[2]]), torch.tensor([[1.0]]), torch.tensor([[0.0]]))
    assert (probs >= least).all()


@pytest.mark.parametrize("vocab", [1, 3, 256, 257, 1000])
@pytest.mark.parametrize("number", [0.0, 0.3, 1 - 2.0**-53])
def test_a_token_without_weight_is_never_drawn(vocab: int, number: float) -> None:
    weights = torch.zeros(4, vocab)
    places = [0, vocab // 3, vocab // 2, vocab - 1]
    for row, place in enumerate(places):
        weights[row, place] = 10.0 ** (-10 * row)
    assert draw(weights, torch.full((4,), number, dtype=torch.float64)).tolist() == places


def test_tokens_are_drawn_as_often_as_their_probabilities_say() -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03])
    num_draws = 20_000
    positions = np.arange(num_draws)
    numbers = torch.from_numpy(uniforms(np.full(num_draws, 3, np.uint64), positions))
    counts = np.bincount(draw(probs.expand(num_draws, -1), numbers).numpy(), minlength=5)
    expected = probs.numpy() * num_draws
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-square, 4 degrees of freedom, 0.1 %


def test_neighbouring_seeds_and_positions_draw_independent_numbers() -> None:
    grid = uniforms(np.repeat(np.arange(200, dtype=np.uint64), 200), np.tile(np.arange(200), 200)).reshape(200, 200)
    assert 0 <= grid.min() < 1e-3
    assert 0.999 < grid.max() < 1
    assert abs(grid.mean() - 0.5) < 0.01
    for neighbour in (grid[1:] - grid[:-1], grid[:, 1:] - grid[:, :-1]):
        assert abs(np.abs(neighbour).mean() - 1 / 3) < 0.01


@settings(max_examples=100)
@given(st.lists(cases(), min_size=2, max_size=6), st.integers(0, 1000), st.integers(0, 30), st.randoms())
def test_a_request_gets_the_same_token_alone_and_in_any_batch_and_row(
    requests: list[Case], seed: int, first_row: int, rng: random.Random
) -> None:
    logits = random_logits(seed, len(requests))
    together, found = Bench(requests).sample(logits)
    order = rng.sample(range(len(requests)), len(requests))
    shuffled, _ = Bench([requests[i] for i in order], first_row, [str(i) for i in order]).sample(logits[order])
    for index, case in enumerate(requests):
        alone, alone_found = Bench([case], first_row, [str(index)]).sample(logits[index : index + 1])
        assert alone[0] == together[index] == shuffled[order.index(index)]
        assert alone_found.get(0) == found.get(index)


def test_a_row_that_is_given_to_another_request_keeps_nothing_of_the_first() -> None:
    strange = SamplingParams(
        temperature=0.0,
        allowed_token_ids=[5],
        logit_bias={6: 100.0},
        min_tokens=9,
        forced_length=9,
        logprobs=2,
        frequency_penalty=2,
        bad_words_token_ids=[[7]],
    )
    bench = Bench([Case(strange, (1,), ())])
    bench.sampler.add(int(bench.rows[0]), "next", SamplingParams(temperature=0.0))
    logits = random_logits(0, 1)
    chosen, found = bench.sample(logits)
    assert chosen[0] == logits.argmax()
    assert found == {}


@settings(max_examples=100)
@given(st.lists(cases(), min_size=1, max_size=4), st.integers(0, 1000))
def test_logprobs_are_the_models_own_whatever_the_rules_changed(requests: list[Case], seed: int) -> None:
    logits = random_logits(seed, len(requests))
    chosen, found = Bench(requests).sample(logits)
    for row, case in enumerate(requests):
        count = case.params.logprobs
        assert (row in found) == (count is not None)
        if count is None:
            continue
        expected = [math.log(prob) for prob in probabilities(logits[row].double().tolist(), 1.0)]
        likeliest = sorted(range(VOCAB), key=lambda token: -expected[token])
        assert found[row].token_ids == [chosen[row], *likeliest[:count]]
        assert found[row].logprobs == pytest.approx([expected[token] for token in found[row].token_ids], abs=1e-5)
        assert found[row].rank == 1 + likeliest.index(chosen[row])


def test_a_forced_length_is_met_exactly_whatever_the_model_says() -> None:
    eos_always = torch.full((1, VOCAB), -10.0)
    eos_always[0, list(EOS)] = 50.0
    for length in range(1, 6):
        for output in range(length):
            case = Case(SamplingParams(temperature=0.0, forced_length=length), (1,), (5,) * output)
            chosen, _ = Bench([case]).sample(eos_always)
            assert (chosen[0] in EOS) == (output == length - 1)


def test_without_a_seed_the_requests_of_one_engine_differ_and_its_next_run_repeats_them() -> None:
    case = Case(SamplingParams(), (1,), ())
    flat = torch.zeros(8, VOCAB)
    first, _ = Bench([case] * 8).sample(flat)
    again, _ = Bench([case] * 8).sample(flat)
    assert len(set(first.tolist())) > 3
    assert first.tolist() == again.tolist()
