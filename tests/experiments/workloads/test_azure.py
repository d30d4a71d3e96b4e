"""Azure traces: what is read, cut, scaled and reseeded; and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.workloads import AzureTrace, WorkloadRequest
from schedulers.errors import InputError
from tests.shared import shared

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
#: Arrivals at 0, 1, 3, 6 and 10 seconds; lengths tell the rows apart.
ROWS = """2023-11-16 18:00:00.0000000,10,1
2023-11-16 18:00:01.0000000,20,2
2023-11-16 18:00:03.0000000,30,3
2023-11-16 18:00:06.0000000,40,4
2023-11-16 18:00:10.0000000,50,5
"""

Write = Callable[[str | bytes], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> str:
        path = tmp_path / "trace.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def arrivals(requests: list[WorkloadRequest]) -> list[float]:
    return [request.arrival_s for request in requests]


def lengths(requests: list[WorkloadRequest]) -> list[tuple[int, int]]:
    return [(request.num_prompt_tokens, request.num_output_tokens) for request in requests]


ALL = [(10, 1), (20, 2), (30, 3), (40, 4), (50, 5)]


def test_a_trace_is_read_on_its_own_clock_from_its_first_row(write: Write) -> None:
    requests = AzureTrace(path=write(HEADER + ROWS), max_tokens=9).requests(0)
    assert arrivals(requests) == [0, 1, 3, 6, 10]
    assert lengths(requests) == ALL
    assert [r.trace_line for r in requests] == [2, 3, 4, 5, 6]
    assert {r.max_tokens for r in requests} == {9}


@pytest.mark.parametrize(
    "change",
    [
        gzip.compress,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.rstrip(b"\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data + b"\n\n",
        lambda data: data.replace(b",", b" , ").replace(b":00.", b":00."),
    ],
    ids=["gzip", "CRLF", "no last newline", "byte-order mark", "blank lines at the end", "spaces"],
)
def test_the_form_of_the_file_does_not_matter(write: Write, change: Callable[[bytes], bytes]) -> None:
    requests = AzureTrace(path=write(change((HEADER + ROWS).encode()))).requests(0)
    assert arrivals(requests) == [0, 1, 3, 6, 10]
    assert lengths(requests) == ALL


def test_columns_are_found_by_name_and_others_are_ignored(write: Write) -> None:
    path = write("Model,GeneratedTokens,TIMESTAMP,ContextTokens\nx,7,2023-11-16 18:00:00,70\n")
    assert lengths(AzureTrace(path=path).requests(0)) == [(70, 7)]


def test_a_cut_takes_a_window_and_then_the_first_rows_of_it(write: Write) -> None:
    path = write(HEADER + ROWS)
    assert lengths(AzureTrace(path=path, num_requests=2).requests(0)) == ALL[:2]
    assert lengths(AzureTrace(path=path, start_s=1, duration_s=5).requests(0)) == ALL[1:3]
    cut = AzureTrace(path=path, start_s=0.5, num_requests=2).requests(0)
    assert lengths(cut) == ALL[1:3]
    assert arrivals(cut) == [0, 2]


def test_a_rate_scales_all_gaps_alike_so_that_the_cut_has_it(write: Write) -> None:
    requests = AzureTrace(path=write(HEADER + ROWS), rate=4).requests(0)
    assert arrivals(requests) == pytest.approx([0, 0.1, 0.3, 0.6, 1.0])
    assert lengths(requests) == ALL


def test_one_row_can_be_sent_at_any_rate(write: Write) -> None:
    assert arrivals(AzureTrace(path=write(HEADER + ROWS), rate=4, num_requests=1).requests(0)) == [0]


def test_without_reseeding_every_seed_gives_the_same_requests(write: Write) -> None:
    trace = AzureTrace(path=write(HEADER + ROWS), rate=4)
    assert trace.requests(0) == trace.requests(1)


def test_reseeding_redraws_arrivals_and_order_and_keeps_the_pairs(write: Write) -> None:
    trace = AzureTrace(path=write(HEADER + ROWS), rate=4, reseed=True)
    one, other = trace.requests(0), trace.requests(1)
    assert one == trace.requests(0)
    assert lengths(one) != lengths(other)
    assert arrivals(one) != arrivals(other)
    assert sorted(lengths(one)) == sorted(lengths(other)) == ALL
    assert arrivals(one) == sorted(arrivals(one))


def test_reseeded_arrivals_scale_with_the_rate_and_default_to_the_cuts_own(write: Write) -> None:
    path = write(HEADER + ROWS)
    fast = AzureTrace(path=path, rate=4, reseed=True).requests(7)
    own = AzureTrace(path=path, reseed=True).requests(7)
    # Four gaps in ten seconds.
    assert arrivals(own) == pytest.approx([arrival * 4 / 0.4 for arrival in arrivals(fast)])
    assert lengths(own) == lengths(fast)


def test_rows_that_all_arrive_at_once_keep_their_clock_but_cannot_be_scaled(write: Write) -> None:
    path = write(HEADER + "2023-11-16 18:00:00,10,1\n2023-11-16 18:00:00,20,2\n")
    assert arrivals(AzureTrace(path=path).requests(0)) == [0, 0]
    assert len(AzureTrace(path=path, rate=2, reseed=True).requests(0)) == 2
    with pytest.raises(InputError, match=r"arrive at once.*workload\.reseed=true"):
        AzureTrace(path=path, rate=2).requests(0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (HEADER, "a header but no rows"),
        (gzip.compress((HEADER + ROWS).encode(), mtime=0)[:-9], "the gzip file is truncated"),
        (gzip.compress((HEADER + ROWS).encode(), mtime=0)[:30], "the gzip file is truncated"),
        (gzip.compress((HEADER + ROWS).encode(), mtime=0)[:30] + b"\x00" * 80, "the gzip file is damaged"),
        (b"\x1f\x8bnot gzip at all", "the gzip file is damaged"),
        (bytes(range(256)) * 20, "line 2: byte 0x80 is not UTF-8"),
        (b"\x00\x01\x02" * 100_000, "line 1: this is not CSV"),
        (b"\x00\x01\x02" * 100, "line 1: no column TIMESTAMP and ContextTokens and GeneratedTokens"),
        (HEADER + "2023-11-16 18:00:00,10,caf\xe9\n", "column GeneratedTokens: 'caf\xe9'"),
        ((HEADER + "2023-11-16 18:00:00,10,caf\xe9\n").encode("latin-1"), "line 2: byte 0xe9 is not UTF-8"),
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:00:00,10\n",
            "no column GeneratedTokens; .*'TIMESTAMP, ContextTokens'",
        ),
        (ROWS, "no column TIMESTAMP"),
        (HEADER.replace(",", ";"), "no column TIMESTAMP"),
        (HEADER + ROWS + "2023-11-16 18:00:1", "line 7: 1 columns instead of 3"),
        (HEADER + "yesterday,10,1\n", "line 2, column TIMESTAMP: 'yesterday'"),
        (HEADER + "1700157346.68,10,1\n", "line 2, column TIMESTAMP: '1700157346.68'"),
        (HEADER + ROWS + "2023-11-16 18:00:11+00:00,10,1\n", "line 7, column TIMESTAMP: .*time zone"),
        (HEADER + ROWS + "2023-11-16 18:00:09,10,1\n", "line 7: .*1 s before that of line 6.*sorted"),
        (HEADER + "2023-11-16 18:00:00,1.5,1\n", "line 2, column ContextTokens: '1.5'"),
        (HEADER + "2023-11-16 18:00:00,,1\n", "line 2, column ContextTokens: ''"),
        (HEADER + "2023-11-16 18:00:00,nan,1\n", "line 2, column ContextTokens: 'nan'"),
        (HEADER + "2023-11-16 18:00:00,0,1\n", "line 2, column ContextTokens: '0'"),
        (HEADER + "2023-11-16 18:00:00,10,0\n", "line 2, column GeneratedTokens: '0'"),
        (HEADER + "2023-11-16 18:00:00,10,-4\n", "line 2, column GeneratedTokens: '-4'"),
        (HEADER + "2023-11-16 18:00:00,10," + "9" * 5000 + "\n", "line 2, column GeneratedTokens: '9999"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_place(write: Write, content: str | bytes, message: str) -> None:
    path = write(content)
    with pytest.raises(InputError, match=message) as refusal:
        AzureTrace(path=path).requests(0)
    assert path in str(refusal.value)
    assert len(str(refusal.value)) < 500 + len(path)


def test_a_file_that_is_absent_or_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workload\.path=.*absent\.csv: there is no such file"):
        AzureTrace(path=str(tmp_path / "absent.csv")).requests(0)
    with pytest.raises(InputError, match=r"workload\.path=.*: this is a folder"):
        AzureTrace(path=str(tmp_path)).requests(0)
    with pytest.raises(InputError, match=r"workload\.path=.*cannot be read"):
        AzureTrace(path="a\0b").requests(0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_requests": 6}, r"workload\.num_requests=6: .* has 5 requests"),
        ({"num_requests": 3, "start_s": 5}, r"workload\.num_requests=3: .* has 2 requests"),
        ({"start_s": 11}, r"no request arrives between workload\.start_s=11 .* ends at 10 s"),
        ({"start_s": 4, "duration_s": 1}, r"no request arrives between workload\.start_s=4 and 5 s"),
    ],
)
def test_a_cut_beyond_the_trace_is_refused(write: Write, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AzureTrace(path=write(HEADER + ROWS), **settings).requests(0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("path", ""),
        ("rate", 0),
        ("rate", float("nan")),
        ("num_requests", 0),
        ("start_s", -1),
        ("duration_s", 0),
        ("reseed", "yes"),
        ("max_tokens", 0),
        ("too_long", "shorten"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"workload\.{field}={value}"):
        replace(AzureTrace(path="trace.csv"), **{field: value})


def test_one_line_says_what_the_workload_is() -> None:
    assert AzureTrace(path="a/trace.csv").describe() == "trace.csv, its own clock"
    cut = AzureTrace(path="a/trace.csv", rate=8, num_requests=1000, start_s=60, duration_s=600)
    assert cut.describe() == "trace.csv, first 1,000 requests, from 60 s to 660 s, scaled to 8/s"
    redrawn = AzureTrace(path="a/trace.csv", rate=8, reseed=True)
    assert redrawn.describe() == "trace.csv, arrivals and order redrawn at 8/s"


def test_the_whole_conversation_trace_is_read() -> None:
    requests = AzureTrace(path=str(shared("data/azure/AzureLLMInferenceTrace_conv.csv.gz"))).requests(0)
    assert len(requests) == 19_366
    assert requests[-1].arrival_s == pytest.approx(3501.722, abs=1e-3)
    assert np.median([prompt for prompt, _ in lengths(requests)]) == 1020
    assert np.median([output for _, output in lengths(requests)]) == 129
