"""Offline use: what `LLM` takes, what it gives, what it refuses; with SmolLM2 where text matters."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real import LLM, LLMEngine, SamplingParams
from real.inputs import Prompt
from schedulers import InputError, RequestRefused
from tests.real.stand_in import StandIn, expected

ROOT = Path(__file__).resolve().parents[2]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def smol() -> Iterator[LLM]:
    """SmolLM2-135M-Instruct; one thread, since machines that run tests are shared."""
    with LLM(num_threads=1, num_blocks=256, max_waiting=4) as llm:
        yield llm


@pytest.fixture(scope="module")
def stand_in() -> Iterator[LLM]:
    with LLM(executor=StandIn, skip_tokenizer=True, num_blocks=128, in_process=True, max_waiting=4) as llm:
        yield llm


def texts(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(prompts, params)]


def test_prompts_are_continued_in_their_order_and_the_same_alone_and_together(smol: LLM) -> None:
    prompts = ["The capital of France is", "One, two, three,", "The opposite of hot is", "Hello", "1 + 1 =", "The sky"]
    together = texts(smol, prompts)  # more than the engine lets wait
    assert "Paris" in together[0]
    assert together[:2] == [texts(smol, prompt)[0] for prompt in prompts[:2]]


def test_text_and_its_token_ids_are_the_same_prompt(smol: LLM) -> None:
    tokenizer = smol.engine.tokenizer
    assert tokenizer is not None
    prompt = "The café is naïve 你好"
    [from_text], [from_ids] = smol.generate(prompt, GREEDY), smol.generate(tokenizer.encode(prompt), GREEDY)
    assert (from_text.prompt, from_ids.prompt) == (prompt, None)
    assert from_text.prompt_token_ids == from_ids.prompt_token_ids
    assert from_text.outputs == from_ids.outputs
    assert from_text.outputs[0].text == tokenizer.decode(from_text.outputs[0].token_ids)


def test_a_chat_is_written_out_by_the_models_template_and_ends_with_eos(smol: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    [output] = smol.chat(question, SamplingParams(temperature=0, max_tokens=40))
    assert "Paris" in output.outputs[0].text
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)
    assert output.outputs[0].token_ids[-1] in smol.engine.ready.eos_token_ids
    assert "<|im_end|>" not in output.outputs[0].text
    assert len(smol.chat([question, question], GREEDY)) == 2


def test_a_stop_string_ends_the_output_and_frees_its_place(smol: LLM) -> None:
    prompt, params = "One, two, three,", SamplingParams(temperature=0, max_tokens=200, stop=[" six", "zzz"])
    [output] = smol.generate(prompt, params)
    assert output.outputs[0].text == " four, five,"
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", " six")
    assert smol.engine.report().num_running == 0


def test_log_probabilities_and_several_outputs_arrive_with_the_text(smol: LLM) -> None:
    params = SamplingParams(n=3, temperature=0.8, seed=1, max_tokens=6, logprobs=2, prompt_logprobs=0)
    [output] = smol.generate("Once upon a time", params)
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert len({sample.text for sample in output.outputs}) > 1
    for sample in output.outputs:
        assert sample.logprobs is not None
        assert [entry.token_ids[0] for entry in sample.logprobs] == sample.token_ids
        assert sample.cumulative_logprob is not None
        assert sample.cumulative_logprob < 0
    assert output.prompt_logprobs is not None
    assert [entry.token_ids[0] for entry in output.prompt_logprobs] == output.prompt_token_ids[1:]
    assert [output.outputs] == [again.outputs for again in smol.generate("Once upon a time", params)]


def test_the_ten_lines_of_the_example_print_text_from_smollm2() -> None:
    # On one core, since two threads that wait for each other crawl on a machine that is shared.
    run = "import os, runpy, sys; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-c", run, str(ROOT / "examples" / "ten_lines.py")]
    script = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert "The capital of France is Paris" in script.stdout


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt 1: the prompt is empty; it needs at least one token"),
        ([], "prompt 1: the prompt is empty; it needs at least one token"),
        (7, "prompt 1: the prompt is int; it must be text or a list of token ids"),
        (b"text", "prompt 1: the prompt is bytes; it must be text or a list of token ids"),
        (["a", "b"], "prompt 1: the prompt has 'a' among its token ids; they must be whole numbers"),
        ([1, 2.0], "prompt 1: the prompt has 2.0 among its token ids"),
        ([1, 49152], "prompt 1: the prompt has token id 49152: the model's ids go from 0 to 49151"),
        ([-1], "prompt 1: the prompt has token id -1"),
        ("\ud800", "prompt 1: the prompt is not valid text"),
        ([1] * 5000, "prompt 1: 5000 prompt tokens + 12 output tokens are more than the 4096 that the KV cache holds"),
    ],
)
def test_an_impossible_prompt_is_named_before_any_is_sent(smol: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        smol.generate(["fine", prompt], GREEDY)
    assert message in str(refused.value)
    assert smol.engine.num_unfinished == 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([GREEDY], "2 prompts and 1 sampling parameters"),
        ([GREEDY, {"temperature": 0}], "prompt 1: sampling parameters must be a SamplingParams, not dict"),
        (SamplingParams(stop="x"), "stop strings and bad words need a tokenizer"),
        (SamplingParams(stop_token_ids=[99999]), "stop_token_ids has token id 99999"),
    ],
)
def test_impossible_parameters_are_named(stand_in: LLM, params: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stand_in.generate([[1], [2]], params)


def test_chats_that_are_none_are_refused(smol: LLM, stand_in: LLM) -> None:
    wrong: list[Any] = [[], [{"content": "who?"}], "hello"]
    for chat in wrong:
        with pytest.raises(InputError, match="a chat must be a list of messages"):
            smol.chat([chat])
    with pytest.raises(InputError, match="chat needs the model's tokenizer"):
        stand_in.chat([{"role": "user", "content": "hi"}])


def test_a_prompt_may_be_one_or_many_and_none_at_all_is_no_work(stand_in: LLM) -> None:
    params = SamplingParams(max_tokens=3)
    assert len(stand_in.generate([1, 2, 3], params)) == 1
    assert stand_in.generate([], params) == []
    prompts: list[Prompt] = [[n + 1] for n in range(30)]
    each = [SamplingParams(max_tokens=n + 1) for n in range(30)]
    outputs = stand_in.generate(prompts, each)
    assert [output.outputs[0].token_ids for output in outputs] == [expected([n + 1], n + 1) for n in range(30)]


def test_more_outputs_of_a_prompt_than_may_wait_are_refused_and_other_prompts_go_on(stand_in: LLM) -> None:
    few, many = SamplingParams(max_tokens=3), SamplingParams(max_tokens=3, n=8)
    outputs = stand_in.generate([[1], [2], [3]], [few, many, few])
    assert [output.error is None for output in outputs] == [True, False, True]
    assert "the queue is full" in str(outputs[1].error)
    assert {sample.finish_reason for sample in outputs[1].outputs} == {"error"}
    assert outputs[2].outputs[0].token_ids == expected([3], 3)
    assert stand_in.engine.report().num_free_blocks == 128


def test_priorities_reach_the_policy() -> None:
    arguments: dict[str, Any] = {"scheduler": "priority", "max_num_seqs": 1, "keep_records": True, "in_process": True}
    with LLMEngine(executor=StandIn, skip_tokenizer=True, **arguments) as engine:
        for name, priority in (("late", 5), ("soon", 1), ("first", 0)):
            engine.add_request(name, [1, 2], SamplingParams(max_tokens=2), priority=priority, client_id="c")
        while engine.num_unfinished:
            engine.step()
        records = engine.report().request_records
    assert [record.request_id for record in records] == ["first", "soon", "late"]
    assert {record.client_id for record in records} == {"c"}


def test_a_step_of_the_engine_gives_what_is_new_and_never_waits_for_nothing(stand_in: LLM) -> None:
    engine = stand_in.engine
    assert engine.step() == []
    engine.add_request("a", [1], SamplingParams(max_tokens=2))
    with pytest.raises(RequestRefused, match="'a' is already being served"):
        engine.add_request("a", [2])
    parts = [engine.step(), engine.step()]
    assert [[part.outputs[0].token_ids for part in step] for step in parts] == [[[token]] for token in expected([1], 2)]
    engine.add_request("b", [1], SamplingParams(max_tokens=50))
    engine.step()
    last = engine.abort_request("b")
    assert last is not None
    assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
    assert engine.abort_request("b") is None
    assert engine.step() == []


def test_reports_between_steps_lose_no_output(stand_in: LLM) -> None:
    engine = stand_in.engine
    engine.add_request("c", [4], SamplingParams(max_tokens=20))
    tokens: list[int] = []
    while engine.num_unfinished:
        engine.report()
        for part in engine.step():
            tokens += part.outputs[0].token_ids
    for part in engine.step():
        tokens += part.outputs[0].token_ids
    assert tokens == expected([4], 20)


def test_a_person_sees_a_progress_bar_and_a_file_does_not() -> None:
    script = "from real import LLM; from tests.real.stand_in import StandIn as S\n"
    script += "LLM(executor=S, skip_tokenizer=True, in_process=True).generate([[1], [2]])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert quiet.stderr == b""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 100))
    subprocess.run([sys.executable, "-c", script], env=environment, stderr=end, check=True)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError), os.fdopen(terminal, "rb", buffering=0):  # how a terminal says its end
        while True:
            shown += os.read(terminal, 10000)
    assert b"2/2" in shown


def test_the_front_of_a_text_free_engine_does_not_load_torch() -> None:
    script = "import sys, real; from tests.real.stand_in import StandIn as S\n"
    script += "real.LLM(executor=S, skip_tokenizer=True).generate([[1]]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
