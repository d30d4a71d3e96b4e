"""Messages survive the journey."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from real.messages import (
    AbortRequests,
    AddRequest,
    AskReport,
    Connected,
    Failed,
    Hello,
    Ready,
    Report,
    Shutdown,
    ToCore,
    ToFront,
    Update,
    Updates,
)
from real.results import TokenLogprobs
from real.sampling_params import SamplingParams
from schedulers import SLO, Request, RequestRecord, StepRecord
from schedulers.decisions import Admission, Arrival, StepDecisions

STEP = StepRecord(1, 0.5, 1.5, 10, 2, 1, 3, 4, 0.25, 1)
REQUEST = RequestRecord("a", 0.1, None, 2.0, (1.0, 1.5), "abort", 7, 2, 0, 1, -3, "c", "s", None, 0.05)
ARRIVAL = Arrival.of(Request("a", 0.1, [1, 2, 3], stop_token_ids=[7], slo=SLO(1.0)))
DECISIONS = StepDecisions(
    1, 0.5, 1.5, [ARRIVAL, "b"], {"a": 3}, {"a": Admission(0, [4])}, {"c": [5]}, ["d"], ["e"], {"a": [6]}
)
SAMPLING = SamplingParams(stop=["\n", "é"], logit_bias={7: -1.0}, bad_words_token_ids=[[1, 2]], seed=2**64 - 1)
LOGPROBS = [TokenLogprobs([5, 6], [-0.1, -2.5], 1)]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ToCore, Hello()),
        (
            ToCore,
            AddRequest(3, "id/é", 1.25, [1, 2, 3], SAMPLING, 2, (4, 5), -1, "c", "s", SLO(1.0, None), 12.5, "salt"),
        ),
        (ToCore, AddRequest(0, "plain", 0.0, [0], SamplingParams())),
        (ToCore, AbortRequests([1, 2])),
        (ToCore, AskReport()),
        (ToCore, Shutdown()),
        (ToFront, Connected()),
        (ToFront, Ready(49152, (2, 0), 8192, 4096, 256)),
        (ToFront, Updates([Update(1, [5]), Update(2, [6], "stop", 2, None, 16, LOGPROBS, LOGPROBS)])),
        (ToFront, Updates([Update(4, finish_reason="error", error="too long")])),
        (ToFront, Report(1, 2, 3, 4, 5, [STEP], [REQUEST], [DECISIONS])),
        (ToFront, Failed("it died", by_input=False)),
    ],
)
def test_a_message_arrives_as_it_was_sent(kind: Any, message: Any) -> None:
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)
    assert arrived == message
    assert type(arrived) is type(message)


def test_an_update_of_one_token_is_small() -> None:
    assert len(msgspec.msgpack.encode(Update(100, [20000]))) <= 16
