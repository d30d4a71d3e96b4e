"""What a client may ask of the sampler, and how the impossible is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from real.sampling_params import SamplingParams, check_for_model, check_token_ids
from schedulers import InputError

VOCAB, EOS = 100, (2, 0)

IMPOSSIBLE = {
    "n": [0, -1, 1.5, "2", None, True],
    "max_tokens": [0, -5, 2.5, "many"],
    "min_tokens": [-1, None, 0.5],
    "temperature": [-0.1, float("nan"), float("inf"), "hot", None, True],
    "top_k": [-2, 1.5, None],
    "top_p": [0, -0.1, 1.1, float("nan")],
    "min_p": [-0.1, 1.01, "x"],
    "presence_penalty": [-2.1, 2.1, float("nan")],
    "frequency_penalty": [-2.1, 2.1, None],
    "repetition_penalty": [0, -1, float("inf")],
    "logit_bias": [{3: 101}, {3: float("nan")}, {3: "much"}, {-1: 1.0}, {"3": 1.0}, [3]],
    "allowed_token_ids": [[], [-1], ["a"], "abc", 7],
    "bad_words": [[""], [3], "word", 7],
    "bad_words_token_ids": [[[]], [[-1]], [3]],
    "seed": [1.5, "x", 1 << 64],
    "stop": [[""], "", [3], 7],
    "stop_token_ids": [[-1], ["</s>"], 7],
    "logprobs": [-1, 0.5],
    "prompt_logprobs": [-1, "all"],
    "forced_length": [0, -1, 3.5],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_an_impossible_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name):
        SamplingParams(**{name: value})


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0.5)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"min_tokens": 5, "max_tokens": 4}, "max_tokens=4"),
        ({"forced_length": 8, "ignore_eos": True}, "ignore_eos"),
        ({"forced_length": 8, "min_tokens": 9}, "forced_length=8"),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        SamplingParams(**arguments)


def test_sequences_are_kept_as_tuples_and_one_stop_string_is_a_list_of_one() -> None:
    params = SamplingParams(stop="end", stop_token_ids=[3, 4], bad_words_token_ids=[[1, 2], [3]])
    assert params.stop == ("end",)
    assert params.stop_token_ids == (3, 4)
    assert params.bad_words_token_ids == ((1, 2), (3,))


def test_parameters_survive_the_way_through_a_message() -> None:
    params = SamplingParams(
        temperature=0.7,
        top_k=5,
        logit_bias={3: -1.5},
        stop=["a", "b"],
        bad_words_token_ids=[[1, 2]],
        seed=(1 << 64) - 1,
    )
    message = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(message, type=SamplingParams) == params


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids has token id 100"),
        ({"allowed_token_ids": [3, 5000]}, "allowed_token_ids has token id 5000"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias has token id 100"),
        ({"bad_words_token_ids": [[1, 2], [3, VOCAB]]}, "bad_words_token_ids has token id 100"),
        ({"logprobs": VOCAB + 1}, "logprobs=101"),
        ({"prompt_logprobs": VOCAB + 1}, "prompt_logprobs=101"),
    ],
)
def test_a_token_id_that_the_model_lacks_is_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        check_for_model(SamplingParams(**arguments), VOCAB, EOS)


@pytest.mark.parametrize(
    "arguments",
    [
        {"allowed_token_ids": [7], "bad_words_token_ids": [[7]]},
        {"allowed_token_ids": [7, 8], "bad_words_token_ids": [[7], [3, 8]]},
        {"allowed_token_ids": [2], "min_tokens": 1},
        {"allowed_token_ids": [2, 9], "stop_token_ids": [9], "forced_length": 4},
        {"bad_words_token_ids": [[token] for token in range(VOCAB)]},
    ],
)
def test_rules_that_could_leave_no_token_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no token to sample"):
        check_for_model(SamplingParams(**arguments), VOCAB, EOS)


def test_allowing_eos_alone_is_fine_when_it_may_come_at_once() -> None:
    check_for_model(SamplingParams(allowed_token_ids=[2]), VOCAB, EOS)


def test_a_forced_length_needs_a_model_with_eos() -> None:
    with pytest.raises(InputError, match="EOS"):
        check_for_model(SamplingParams(forced_length=4), VOCAB, ())


@pytest.mark.parametrize("wrong", [-1, VOCAB, 1 << 40])
def test_a_prompt_token_out_of_range_is_named(wrong: int) -> None:
    check_token_ids("the prompt", [0, VOCAB - 1], VOCAB)
    with pytest.raises(InputError, match=f"the prompt has token id {wrong}: the model's ids go from 0 to 99"):
        check_token_ids("the prompt", [5, wrong, 7], VOCAB)


def test_each_of_n_outputs_has_a_seed_of_its_own() -> None:
    children = [SamplingParams(n=3, seed=11).child(index) for index in range(3)]
    assert [child.n for child in children] == [1, 1, 1]
    assert len({child.seed for child in children}) == 3
    assert children == [SamplingParams(n=3, seed=11).child(index) for index in range(3)]
    assert SamplingParams(n=3).child(1).seed is None


def test_bad_words_become_tokens_with_and_without_a_space_before() -> None:
    params = SamplingParams(bad_words=["ab"]).tokenized(lambda text: [ord(letter) for letter in text])
    assert params.bad_words == ()
    assert params.bad_words_token_ids == ((97, 98), (32, 97, 98))
