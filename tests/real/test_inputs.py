"""What a client may pass: whatever it is, it is refused by name or reaches the core; the engine serves on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from real import LLM, LLMEngine, SamplingParams
from real.inputs import InputChecker, Scheduling
from real.messages import AddRequest, Ready, ToCore
from schedulers import SLO, InputError, RequestRefused
from tests.real.stand_in import StandIn, expected

#: Values of every kind; few arguments take any of them.
ZOO: list[Any] = [
    *(None, True, 0, 1, -1, 1.5, -0.0, math.nan, math.inf, 10**30, -(10**30), 10**400, 1e300, 1e-300),
    *(np.float64(0.5), np.float32(0.5), np.int64(1), np.bool_(1), np.array([1, 2]), Fraction(1, 2), 1j),
    *("", "text", "\ud800", b"bytes", [], [1], ["a"], [["a"]], [[1], [10**30]], [None], [math.nan], [True]),
    *({}, {1: 1}, {1: 10**400}, {10**30: 1.0}, {"a": 1}, {1: "a"}, {1, 2}, object(), SLO(ttft_s=1), int, iter([1])),
]


def arrives(sampling: SamplingParams, scheduling: Scheduling) -> bool:
    """Whether the core would read what the front sends."""
    told = {name: getattr(scheduling, name) for name in Scheduling.__slots__} | {"arrival_time": 0.0}
    message = AddRequest(number=0, request_id="r", prompt_token_ids=[1], sampling=sampling, **told)
    read: Any = msgspec.msgpack.Decoder(ToCore).decode(msgspec.msgpack.Encoder().encode(message))
    return bool(read == message)


@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
def test_a_sampling_parameter_is_refused_by_name_or_reaches_the_core_unharmed(name: str) -> None:
    checker = InputChecker(Ready(100, (2,), 64, 64, 4), None)
    taken, refusals = 0, {}
    for value in ZOO:
        try:
            checked = checker.check("it", [1], SamplingParams(**{name: value}))
        except InputError as error:
            refusals[str(error)] = value
        else:
            assert arrives(checked.params, Scheduling())
            taken += 1
    assert taken < len(ZOO) / 2
    for refusal in refusals:
        assert any(said in refusal for said in (name, "need a tokenizer", "output tokens"))


@pytest.mark.parametrize("name", Scheduling.__slots__)
def test_what_a_policy_is_told_is_refused_by_name_or_reaches_the_core_unharmed(name: str) -> None:
    taken, refusals = 0, []
    for value in ZOO:
        try:
            scheduling = Scheduling.of(**{name: value})
        except InputError as error:
            refusals.append(str(error))
        else:
            assert arrives(SamplingParams(), scheduling)
            taken += 1
    assert 0 < taken < len(ZOO) / 2
    assert all(name in refusal for refusal in refusals)


@pytest.fixture(scope="module", params=[False, True], ids=["own process", "in process"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(executor=StandIn, skip_tokenizer=True, num_blocks=64, in_process=request.param) as llm:
        yield llm


def still_serves(llm: LLM) -> bool:
    output = llm.generate([7], SamplingParams(max_tokens=3))[0].outputs[0]
    return output.token_ids == expected([7], 3) and not llm.engine.num_unfinished


def test_prompts_and_parameters_of_any_kind_are_refused_or_served(llm: LLM) -> None:
    for value in ZOO:
        for prompts, params in ((value, None), ([value], None), ([[1]], value), ([[1]], [value])):
            try:
                llm.generate(prompts, params)
            except InputError:
                assert llm.engine.num_unfinished == 0
    assert still_serves(llm)


@pytest.mark.parametrize(
    ("scheduling", "message"),
    [
        ({"priority": "high"}, "priority='high': it must be a whole number"),
        ({"slo": {"ttft_s": 1}}, "slo={'ttft_s': 1}: it must be a schedulers.SLO"),
        ({"prio": 1}, "unknown argument 'prio' of a request; there are arrival_time, priority"),
    ],
)
def test_what_is_wrong_for_policies_is_named_before_any_prompt_is_sent(llm: LLM, scheduling: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.generate([[1], [2]], **scheduling)
    assert llm.engine.num_unfinished == 0
    assert still_serves(llm)


def test_a_request_id_of_any_kind_is_refused_or_served(llm: LLM) -> None:
    engine: LLMEngine = llm.engine
    taken, refusals = [], []
    for value in ZOO:
        try:
            engine.add_request(value, [1])
        except InputError as error:
            refusals.append(str(error))
        else:
            taken.append(value)
    assert taken == ["text"]
    assert all("request_id=" in refusal for refusal in refusals)
    engine.abort_request("text")
    assert still_serves(llm)


def test_a_request_added_by_hand_survives_a_generation_that_would_take_its_id() -> None:
    with LLM(executor=StandIn, skip_tokenizer=True, num_blocks=64, in_process=True) as llm:
        llm.engine.add_request("generate-1", [3], SamplingParams(max_tokens=4))
        with pytest.raises(RequestRefused, match="'generate-1' is already being served"):
            llm.generate([[1], [2]])
        assert llm.engine.num_unfinished == 1
        tokens = []
        while llm.engine.num_unfinished:
            tokens += [token for part in llm.engine.step() for token in part.outputs[0].token_ids]
    assert tokens == expected([3], 4)


def test_text_that_another_models_tokenizer_turned_into_unknown_ids_is_refused() -> None:
    class Foreign:
        def encode(self, text: str) -> list[int]:
            return [5, 100]

    checker = InputChecker(Ready(100, (2,), 64, 64, 4), Foreign())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="it: the prompt has token id 100: the model's ids go from 0 to 99"):
        checker.check("it", "text", SamplingParams())
