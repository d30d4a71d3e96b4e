"""The token source: how long outputs are, and who knows."""

from __future__ import annotations

import pytest

from schedulers import ChunkedPrefill, FinishReason, InputError, Limits, Request, SchedulerOutput
from sim.tokens import EOS, TOKEN, TokenSource


def serve(num_output_tokens: int, **fields: object) -> Request:
    """One request whose output is truly this long."""
    scheduler = ChunkedPrefill(Limits(token_budget=64, max_num_seqs=2, num_blocks=8, max_model_len=100))
    tokens = TokenSource()
    request = Request("r0", 0.0, num_prompt_tokens=20, **{"eos_token_id": EOS, **fields})  # type: ignore[arg-type]
    scheduler.add_request(request)
    tokens.expect("r0", num_output_tokens)
    for _ in range(100):
        output = scheduler.schedule(0.0)
        scheduler.update_from_output(output, tokens.sample(output), 0.0)
    return request


@pytest.mark.parametrize("length", [1, 2, 7])
def test_an_output_ends_with_eos_at_its_true_length(length: int) -> None:
    request = serve(length)
    assert request.output_token_ids == [TOKEN] * (length - 1) + [EOS]
    assert request.finish_reason is FinishReason.STOP


def test_max_tokens_cuts_an_output_that_is_truly_longer() -> None:
    request = serve(7, max_tokens=3)
    assert (request.num_output_tokens, request.finish_reason) == (3, FinishReason.LENGTH)


def test_an_output_as_long_as_max_tokens_ends_with_eos() -> None:
    assert serve(3, max_tokens=3).finish_reason is FinishReason.STOP


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 9}])
def test_a_request_that_runs_past_eos_goes_on_to_its_limit(fields: dict[str, int]) -> None:
    request = serve(3, max_tokens=9, **fields)
    assert request.num_output_tokens == 9


def test_the_model_s_limit_cuts_an_output_without_max_tokens() -> None:
    request = serve(1000)
    assert (request.num_tokens, request.finish_reason) == (100, FinishReason.LENGTH)


def test_prompt_chunks_sample_nothing() -> None:
    scheduler = ChunkedPrefill(Limits(token_budget=8, max_num_seqs=2, num_blocks=8))
    tokens = TokenSource()
    scheduler.add_request(Request("r0", 0.0, num_prompt_tokens=20, eos_token_id=EOS))
    tokens.expect("r0", 1)
    sampled = []
    for _ in range(3):
        output = scheduler.schedule(0.0)
        result = tokens.sample(output)
        sampled.append(dict(result.sampled_token_ids))
        scheduler.update_from_output(output, result, 0.0)
    assert sampled == [{}, {}, {"r0": (EOS,)}]


@pytest.mark.parametrize("length", [0, -1])
def test_an_output_without_a_token_is_refused_by_name(length: int) -> None:
    with pytest.raises(InputError, match=f"'r0'.*{length} tokens"):
        TokenSource().expect("r0", length)


def test_nothing_that_a_scheduler_is_given_or_gives_tells_a_length() -> None:
    """Two workloads that differ only in true lengths are scheduled alike until the first EOS."""

    def first_outputs(length: int) -> list[SchedulerOutput]:
        scheduler = ChunkedPrefill(Limits(token_budget=16, max_num_seqs=4, num_blocks=20))
        tokens = TokenSource()
        for i in range(6):
            scheduler.add_request(Request(f"r{i}", 0.0, num_prompt_tokens=10 + i, max_tokens=50, eos_token_id=EOS))
            tokens.expect(f"r{i}", length + i)
        outputs = []
        for _ in range(9):
            outputs.append(scheduler.schedule(0.0))
            scheduler.update_from_output(outputs[-1], tokens.sample(outputs[-1]), 0.0)
        return outputs

    assert first_outputs(10) == first_outputs(40)
