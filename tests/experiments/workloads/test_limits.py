"""Requests beyond the model's limit are refused by name, or dropped and counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.workloads import AzureTrace, WorkloadRequest, check_lengths
from schedulers.errors import InputError


def request(name: str, prompt: int, output: int, max_tokens: int | None = None) -> WorkloadRequest:
    return WorkloadRequest(name, 0.0, prompt, output, max_tokens=max_tokens)


SHORT, EXACT, LONG = request("short", 10, 5), request("exact", 90, 10), request("long", 90, 11)


def test_prompt_and_output_may_fill_the_model_exactly() -> None:
    assert check_lengths([SHORT, EXACT], 100) == ([SHORT, EXACT], 0)


def test_a_request_too_long_is_refused_with_its_lengths_the_limit_and_two_ways_out() -> None:
    with pytest.raises(InputError) as refusal:
        check_lengths([SHORT, LONG, request("longest", 200, 1)], 100)
    assert str(refusal.value) == (
        "request 'long': 90 prompt and 11 output tokens are 101, but the model takes at most 100; 2 of 3 requests are "
        "too long: leave them out with workload.too_long=drop, or choose a model that takes 201 tokens"
    )


def test_a_request_from_a_trace_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,1,1\n2023-11-16 18:00:01,500,1\n")
    with pytest.raises(InputError, match=r"request 'r00001' \(.*trace\.csv, line 3\): 500 prompt and 1 output"):
        check_lengths(AzureTrace(path=str(path)).requests(0), 100)


def test_dropping_keeps_the_others_in_order_and_counts() -> None:
    assert check_lengths([LONG, EXACT, LONG, SHORT], 100, "drop") == ([EXACT, SHORT], 2)


def test_a_workload_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(InputError, match=r"all 2 requests .* longer than the 100 tokens"):
        check_lengths([LONG, LONG], 100, "drop")


def test_the_clients_limit_counts_where_it_is_below_the_true_output() -> None:
    capped = request("capped", 90, 500, max_tokens=10)
    assert check_lengths([capped], 100).requests == [capped]


def test_an_unknown_way_out_is_refused_with_the_choices() -> None:
    with pytest.raises(InputError, match=r"workload\.too_long=cut: it must be error or drop"):
        check_lengths([SHORT], 100, "cut")
