"""Traces with hash ids: what of two prompts is alike, and lines that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.workloads import AzureTrace, MooncakeTrace
from schedulers.errors import InputError
from tests.shared import shared

LINES: list[dict[str, object]] = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 1024, "output_length": 6, "hash_ids": [0, 1]},
    {"timestamp": 2000, "input_length": 20, "output_length": 7, "hash_ids": [9]},
]


def write(folder: Path, *lines: object) -> str:
    path = folder / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_lines_are_read_with_times_in_seconds(tmp_path: Path) -> None:
    requests = MooncakeTrace(path=write(tmp_path, *LINES)).requests(0)
    assert [r.arrival_s for r in requests] == [0, 0.5, 2]
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in requests] == [(1100, 5), (1024, 6), (20, 7)]
    assert [r.trace_line for r in requests] == [1, 2, 3]


@pytest.mark.parametrize("block_size", [1, 16, 64, 512])
def test_each_full_block_of_a_prompt_has_a_hash_of_its_own(tmp_path: Path, block_size: int) -> None:
    for request in MooncakeTrace(path=write(tmp_path, *LINES)).requests(0):
        hashes = request.block_hashes(block_size)
        assert len(hashes) == request.num_prompt_tokens // block_size
        assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize("block_size", [16, 512])
def test_prompts_share_the_blocks_of_their_common_ids_and_no_other(tmp_path: Path, block_size: int) -> None:
    first, second, third = (r.block_hashes(block_size) for r in MooncakeTrace(path=write(tmp_path, *LINES)).requests(0))
    assert common(first, second) == 1024 // block_size
    assert not set(third) & set(first + second)


@pytest.mark.parametrize("block_size", [48, 500, 1024])
def test_a_block_that_lies_in_two_of_the_traces_is_shared_if_the_later_one_is(tmp_path: Path, block_size: int) -> None:
    lines = [{**LINES[0], "hash_ids": ids, "input_length": 1536} for ids in ([0, 1, 2], [0, 1, 3], [0, 4, 5])]
    first, second, third = (r.block_hashes(block_size) for r in MooncakeTrace(path=write(tmp_path, *lines)).requests(0))
    assert common(first, second) == 1024 // block_size
    assert common(first, third) == 512 // block_size
    assert len(first) == 1536 // block_size


def test_a_trace_without_ids_says_nothing_of_its_prompts(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,100,1\n")
    assert AzureTrace(path=str(path)).requests(0)[0].block_hashes(16) == []


def test_reseeding_redraws_arrivals_but_keeps_the_order_of_the_rows(tmp_path: Path) -> None:
    trace = MooncakeTrace(path=write(tmp_path, *LINES), rate=3, reseed=True)
    one, other = trace.requests(0), trace.requests(1)
    assert [r.trace_line for r in one] == [r.trace_line for r in other] == [1, 2, 3]
    assert [r.arrival_s for r in one] != [r.arrival_s for r in other]
    assert trace.describe() == "trace.jsonl, arrivals redrawn at 3/s"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 0, "input_le', "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ("[1, 2]", "this is not a JSON object"),
        ({}, "no timestamp and input_length and output_length and hash_ids; the line has nothing"),
        ({"timestamp": 0, "input_length": 9, "output_length": 1}, "no hash_ids; the line has timestamp, input_length"),
        ({**LINES[0], "timestamp": "0"}, 'timestamp: "0" is not a number of milliseconds'),
        ({**LINES[0], "timestamp": None}, "timestamp: null"),
        ({**LINES[0], "timestamp": float("nan")}, "timestamp: NaN"),
        ({**LINES[0], "input_length": 0}, "input_length: 0 is not a whole number of tokens"),
        ({**LINES[0], "input_length": 1.5}, "input_length: 1.5"),
        ({**LINES[0], "output_length": 0}, "output_length: 0"),
        ({**LINES[0], "output_length": True}, "output_length: true"),
        ({**LINES[0], "hash_ids": "012"}, 'hash_ids: "012" is not a list of whole numbers'),
        ({**LINES[0], "hash_ids": [0, None, 2]}, r"hash_ids: .* is not a list of whole numbers"),
        (
            {**LINES[0], "hash_ids": [0, 1]},
            r"hash_ids: 2 ids, but 1100 prompt tokens are 3 blocks .*trace_block_size=512",
        ),
        ({**LINES[0], "hash_ids": list(range(69))}, "hash_ids: 69 ids, but 1100 prompt tokens are 3 blocks"),
    ],
)
def test_a_bad_line_is_refused_with_its_place(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path, LINES[0], "", line)
    with pytest.raises(InputError, match=f"trace.jsonl, line 3.*{message}") as refusal:
        MooncakeTrace(path=path).requests(0)
    assert len(str(refusal.value)) < 500 + len(path)


def test_lines_out_of_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 3: .*0\.5 s before that of line 2"):
        MooncakeTrace(path=write(tmp_path, LINES[0], {**LINES[0], "timestamp": 1000}, LINES[1])).requests(0)


def test_a_trace_block_of_no_tokens_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"workload\.trace_block_size=0"):
        MooncakeTrace(path="trace.jsonl", trace_block_size=0)


def test_the_whole_mooncake_trace_is_read() -> None:
    requests = MooncakeTrace(path=str(shared("data/mooncake/conversation_trace.jsonl.gz"))).requests(0)
    assert len(requests) == 12_031
    # All but a few prompts begin with the same system prompt of one trace block.
    shared_start = requests[0].block_hashes(16)[:32]
    assert sum(r.block_hashes(16)[:32] == shared_start for r in requests[:1000]) > 900
