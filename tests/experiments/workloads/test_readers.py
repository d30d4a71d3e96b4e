"""BurstGPT, ShareGPT and LLMServingSim: what is read of each, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.workloads import BurstGPTTrace, LLMServingSimTrace, RequestClass, ShareGPT
from schedulers.errors import InputError
from tests.shared import shared

Write = Callable[[Any], str]

BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,Conversation log
45,ChatGPT,417,0,417,API log
118.5,GPT-4,33,276,309,API log
"""
SAID = [
    {"from": "human", "value": "one two three"}, {"from": "gpt", "value": "four five six seven eight nine"},
    {"from": "human", "value": "ten"}, {"from": "gpt", "value": "eleven twelve thirteen"},
]  # fmt: skip
SIM = [
    {"input_toks": 40, "output_toks": 5, "arrival_time_ns": 1_500_000_000, "input_tok_ids": list(range(40))},
    {"input_toks": 33, "output_toks": 6, "arrival_time_ns": 2_000_000_000, "input_tok_ids": [*range(20), *[7] * 13]},
]  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: Any) -> str:
        path = tmp_path / "file"
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def lines(*items: object) -> str:
    return "".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in items)


# -- BurstGPT ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [str.encode, lambda text: gzip.compress(text.encode())])
def test_burstgpt_is_read_without_the_requests_that_failed(write: Write, form: Callable[[str], bytes]) -> None:
    requests = BurstGPTTrace(path=write(form(BURSTGPT))).requests(0)
    assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens, r.trace_line) for r in requests] == [
        (0.0, 472, 18, 2),
        (40.0, 1087, 230, 3),
        (113.5, 33, 276, 5),
    ]


def test_a_failed_request_is_refused_if_that_is_asked(write: Write) -> None:
    with pytest.raises(InputError, match=r"line 4, column Response tokens: '0' is not .* at least 1"):
        BurstGPTTrace(path=write(BURSTGPT), failed="error").requests(0)


def test_a_column_tells_classes_apart(write: Write) -> None:
    classes = {"ChatGPT": RequestClass(priority=5, client_id="cheap"), "GPT-4": RequestClass(priority=1)}
    requests = BurstGPTTrace(path=write(BURSTGPT), class_column="Model", classes=classes).requests(0)
    assert [(r.class_name, r.priority, r.client_id) for r in requests] == [
        ("ChatGPT", 5, "cheap"),
        ("GPT-4", 1, ""),
        ("GPT-4", 1, ""),
    ]
    by_type = {"Conversation log": RequestClass(priority=1)}
    with pytest.raises(InputError, match=r"line 5, Log Type: 'API log' is none of workload\.classes, .*Conversation"):
        BurstGPTTrace(path=write(BURSTGPT), class_column="Log Type", classes=by_type).requests(0)


def test_classes_of_a_trace_are_drawn_by_share_and_every_seed_draws_the_same_unless_reseeded(write: Write) -> None:
    rows = "".join(f"{n},ChatGPT,9,9,18,API log\n" for n in range(2000))
    classes = {"urgent": RequestClass(share=0.25, priority=0), "other": RequestClass(share=0.75, priority=1)}
    path = write(BURSTGPT.splitlines(keepends=True)[0] + rows)
    trace = BurstGPTTrace(path=path, classes=classes)
    requests = trace.requests(0)
    assert sum(r.class_name == "urgent" for r in requests) / 2000 == pytest.approx(0.25, abs=0.04)
    assert trace.requests(1) == requests
    reseeded = BurstGPTTrace(path=path, classes=classes, reseed=True)
    assert [r.class_name for r in reseeded.requests(1)] != [r.class_name for r in reseeded.requests(2)]
    assert trace.describe().endswith("its own clock; classes: urgent 25%, other 75%")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_column": "Model"}, r"workload\.class_column=Model: workload\.classes must say"),
        ({"class_column": 3}, r"workload\.class_column=3"),
        (
            {"class_column": "Model", "classes": {"a": RequestClass(share=1)}},
            r"workload\.classes\.a\.share=1: .*leave them out",
        ),
        ({"classes": {"a": RequestClass(share=0.5)}}, r"must add up to 1, not 0\.5"),
        ({"classes": {"a": 3}}, r"workload\.classes\.a=3"),
        ({"failed": "ignore"}, r"workload\.failed=ignore: it must be drop or error"),
        ({"path": ""}, r"workload\.path="),
    ],
)
def test_a_setting_of_a_trace_that_cannot_be_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BurstGPTTrace(**{"path": "file", **settings})


def test_a_class_column_that_the_file_has_not_is_named_with_those_it_has(write: Write) -> None:
    trace = BurstGPTTrace(path=write(BURSTGPT), class_column="User", classes={"a": RequestClass()})
    with pytest.raises(InputError, match="line 1: no column User; the file's columns are 'Timestamp, Model"):
        trace.requests(0)


HEADER = BURSTGPT.splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (HEADER, "a header but no rows"),
        (HEADER + "1,ChatGPT,9,0,9,API log\n", "no request of the file has"),
        ("Timestamp,Model\n1,x\n", "no column Request tokens and Response tokens"),
        (HEADER + "1,ChatGPT\n", "line 2: 2 columns instead of 6"),
        (HEADER + "noon,ChatGPT,1,1,2,API log\n", "line 2, column Timestamp: 'noon' is not a number of seconds"),
        (HEADER + "nan,ChatGPT,1,1,2,API log\n", "line 2, column Timestamp: 'nan'"),
        (HEADER + "1,ChatGPT,-1,1,2,API log\n", "line 2, column Request tokens: '-1'"),
        (HEADER + "1,ChatGPT,1.5,1,2,API log\n", "line 2, column Request tokens: '1.5'"),
        (BURSTGPT + "4,ChatGPT,1,1,2,API log\n", r"line 6: .*114\.5 s before that of line 5.*sorted"),
        (gzip.compress(BURSTGPT.encode(), mtime=0)[:40], "truncated"),
    ],
)
def test_a_bad_burstgpt_file_is_refused_with_its_place(write: Write, content: str | bytes, message: str) -> None:
    path = write(content)
    with pytest.raises(InputError, match=message) as refusal:
        BurstGPTTrace(path=path).requests(0)
    assert path in str(refusal.value)


# -- ShareGPT ----------------------------------------------------------------------------------------------------------


def conversation(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in messages]}


def share_gpt(path: str, **settings: Any) -> ShareGPT:
    return ShareGPT(path=path, **{"rate": 1.0, "tokens_per_word": 2.0, **settings})


def test_conversations_become_sessions_whose_turns_repeat_the_history(write: Write) -> None:
    requests = share_gpt(write([{"id": "x", "conversations": SAID}])).requests(0)
    assert [(r.num_prompt_tokens, r.num_output_tokens, r.follows) for r in requests] == [
        (6, 12, ""),
        (6 + 12 + 2, 6, "s00000.0"),
    ]


@pytest.mark.parametrize(
    ("messages", "lengths"),
    [
        ([("gpt", "a b c"), ("human", "a"), ("gpt", "a b")], [(2, 4)]),
        ([("system", "be brief"), ("human", " a"), ("gpt", "a b")], [(6, 4)]),
        ([("human", "a "), ("human", "b"), ("gpt", "c "), ("gpt", "d"), ("human", "unanswered")], [(4, 4)]),
        ([("user", "a"), ("assistant", ""), ("user", " b"), ("assistant", "c")], [(4, 2)]),
        ([("human", ""), ("gpt", "a")], []),
        ([("human", "a")], []),
        ([], []),
    ],
)
def test_what_is_left_out_of_a_conversation(
    write: Write, messages: list[tuple[str, str]], lengths: list[tuple[int, int]]
) -> None:
    answered = conversation(("human", "x"), ("gpt", "y"))
    requests = share_gpt(write([conversation(*messages), answered])).requests(0)
    turns = [r for r in requests if r.num_output_tokens + r.num_prompt_tokens > 4 or r.session_id == "s00000"]
    expected = lengths or [(2, 2)]  # then the first session is the other one
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in turns] == expected


def test_the_first_conversations_in_which_anything_is_answered_are_taken(write: Write) -> None:
    some = [conversation(), *[conversation(("human", "a"), ("gpt", "b"))] * 3]
    assert len(share_gpt(write(some), num_sessions=2).requests(0)) == 2
    with pytest.raises(InputError, match=r"workload\.num_sessions=4: .* has 3 conversations"):
        share_gpt(write(some), num_sessions=4).requests(0)


def test_lengths_are_counted_by_a_tokenizer_if_one_is_given(write: Write, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="counting with a tokenizer needs tokenizers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = Tokenizer(models.WordLevel({"a": 0, "b": 1}))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    letters.save(str(tmp_path / "tokenizer.json"))
    path = write([conversation(("human", "ab"), ("gpt", "abba"))])
    for tokenizer in (tmp_path, tmp_path / "tokenizer.json"):
        (request,) = share_gpt(path, tokenizer=str(tokenizer)).requests(0)
        assert (request.num_prompt_tokens, request.num_output_tokens) == (2, 4)
    with pytest.raises(InputError, match=r"workload\.tokenizer=.*file.* cannot be read"):
        share_gpt(path, tokenizer=path).requests(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("[", r"this is not JSON \(.*line 1"),
        ("[" * 100_000, "this is not JSON"),
        ({"conversations": []}, "this is not a JSON array"),
        ([], "no conversation in which anything is answered"),
        ([conversation(("human", "a"))], "no conversation in which anything is answered"),
        ([conversation(), {"id": 3}], "conversation 2: it must be an object with conversations"),
        ([3], "conversation 1: it must be an object"),
        ([conversation(("human", "a"), ("alien", "b"))], "conversation 1, message 2: .*from is 'alien'"),
        ([{"conversations": [{"from": "human", "value": 3}]}], "conversation 1, message 1: .*a text as value"),
        ([{"conversations": ["hello"]}], "conversation 1, message 1: .*from is None"),
        (b"\xff\xfe[]", "not UTF-8"),
    ],
)
def test_a_bad_sharegpt_file_is_refused_with_its_place(write: Write, content: Any, message: str) -> None:
    path = write(content)
    with pytest.raises(InputError, match=message) as refusal:
        share_gpt(path).requests(0)
    assert path in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "value"), [("tokens_per_word", 0), ("num_sessions", 0), ("tokenizer", ""), ("path", ""), ("rate", 0)]
)
def test_a_setting_of_sharegpt_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"workload\.{field}={value}"):
        share_gpt(**{"path": "file", field: value})


# -- LLMServingSim -----------------------------------------------------------------------------------------------------


def test_llmservingsim_prompts_share_the_blocks_of_their_common_tokens(write: Write) -> None:
    requests = LLMServingSimTrace(path=write(lines(*SIM))).requests(0)
    assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in requests] == [(0, 40, 5), (0.5, 33, 6)]
    for block_size, shared_blocks in ((1, 20), (4, 5), (8, 2), (16, 1), (32, 0)):
        first, second = (request.block_hashes(block_size) for request in requests)
        assert (len(first), len(second)) == (40 // block_size, 33 // block_size)
        assert len(set(first) & set(second)) == shared_blocks


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "this is not JSON"),
        ({"input_toks": 3}, "no arrival_time_ns and output_toks and input_tok_ids"),
        ({**SIM[1], "arrival_time_ns": "2"}, 'arrival_time_ns: "2" is not a number of nanoseconds'),
        ({**SIM[1], "input_toks": 34}, "input_tok_ids: 33 ids, but input_toks=34"),
        ({**SIM[1], "output_toks": 0}, "output_toks: 0"),
        ({**SIM[1], "input_tok_ids": [1, "2"]}, "input_tok_ids: .* is not a list of whole numbers"),
        ({**SIM[1], "input_tok_ids": [*range(32), -1]}, "input_tok_ids: .* is not a list of token ids"),
        ({**SIM[1], "input_tok_ids": [*range(32), 2**70]}, "input_tok_ids: .* is not a list of token ids"),
        ({**SIM[1], "arrival_time_ns": 1}, "before that of line 1.*sorted"),
    ],
)
def test_a_bad_llmservingsim_line_is_refused_with_its_place(write: Write, line: object, message: str) -> None:
    path = write(lines(SIM[0], "", line))
    with pytest.raises(InputError, match=f"line 3.*{message}") as refusal:
        LLMServingSimTrace(path=path).requests(0)
    assert len(str(refusal.value)) < 400 + len(path)


def test_the_published_workload_is_read_whole() -> None:
    path = shared("data/vllm_runs/workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl.gz")
    requests = LLMServingSimTrace(path=str(path)).requests(0)
    assert len(requests) == 300
    assert sum(request.num_prompt_tokens for request in requests) == sum(len(r.token_ids) for r in requests)
