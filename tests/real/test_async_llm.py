"""Streams of many clients at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from real import AsyncLLM, EngineDeadError, RequestOutput, SamplingParams
from schedulers import InputError, RequestRefused
from tests.real.stand_in import ClumsyStandIn, SlowStandIn, SlowStandInProcesses, StandIn, expected


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


@pytest.fixture(params=[False, True], ids=["own process", "in process"])
def llm(request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(executor=StandIn, skip_tokenizer=True, num_blocks=256, in_process=request.param)
    yield llm
    llm.shutdown()


@pytest.fixture
def slow() -> Iterator[AsyncLLM]:
    """20 ms a step."""
    llm = AsyncLLM(executor=SlowStandIn, skip_tokenizer=True, num_blocks=256, max_num_seqs=8, max_waiting=8)
    yield llm
    llm.shutdown()


def params(max_tokens: int, **others: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **others)


async def whole(stream: Any) -> RequestOutput:
    """All parts of a stream, put together."""
    parts: list[RequestOutput] = [part async for part in stream]
    for part in parts[1:]:
        parts[0].add(part)
    return parts[0]


def test_many_streams_at_once_each_get_their_own_tokens(llm: AsyncLLM) -> None:
    async def scene() -> None:
        outputs = await asyncio.gather(*(whole(llm.generate([n + 1], params(n + 1))) for n in range(50)))
        for n, output in enumerate(outputs):
            assert output.outputs[0].token_ids == expected([n + 1], n + 1)
            assert (output.finished, output.outputs[0].finish_reason) == (True, "length")
        report = await llm.report()
        assert (report.num_running, report.num_waiting, report.num_free_blocks) == (0, 0, 256)

    run(scene())


def test_a_quick_consumer_gets_token_by_token_and_a_slow_one_all_that_came_meanwhile(slow: AsyncLLM) -> None:
    async def scene() -> None:
        quick = [len(part.outputs[0].token_ids) async for part in slow.generate([1], params(10))]
        assert quick == [1] * 10
        lazy = []
        async for part in slow.generate([1], params(20)):
            lazy.append(part.outputs[0].token_ids)
            await asyncio.sleep(0.2)
        assert len(lazy) < 8
        assert [token for part in lazy for token in part] == expected([1], 20)

    run(scene())


def test_a_consumer_that_leaves_cancels_its_request(slow: AsyncLLM) -> None:
    async def leave_by_break() -> None:
        async for _ in slow.generate([1], params(3000)):
            break

    async def leave_by_cancellation() -> None:
        task = asyncio.create_task(whole(slow.generate([2], params(3000))))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def scene() -> None:
        stays = asyncio.create_task(whole(slow.generate([3], params(3000), request_id="stays")))
        await leave_by_break()
        await leave_by_cancellation()
        gc.collect()
        await asyncio.sleep(0.1)
        assert (await slow.report()).num_running == 1
        slow.abort("stays")
        tokens = (await stays).outputs[0].token_ids
        assert tokens == expected([3], len(tokens))
        assert slow.engine.num_unfinished == 0

    run(scene())


def test_an_abort_ends_the_stream_with_what_there_was(slow: AsyncLLM) -> None:
    async def scene() -> None:
        task = asyncio.create_task(whole(slow.generate([1], params(3000), request_id="mine")))
        await asyncio.sleep(0.2)
        slow.abort("mine")
        slow.abort("nobody's")
        output = await task
        assert output.outputs[0].finish_reason == "abort"
        tokens = output.outputs[0].token_ids
        assert 0 < len(tokens) < 30
        assert tokens == expected([1], len(tokens))
        # The id is free again, and late tokens of its former owner do not reach the new one.
        assert (await whole(slow.generate([2], params(3), request_id="mine"))).outputs[0].token_ids == expected([2], 3)

    run(scene())


def test_what_the_core_refuses_raises_in_its_stream_alone(slow: AsyncLLM) -> None:
    async def scene() -> None:
        outputs = await asyncio.gather(
            *(whole(slow.generate([n + 1], params(20))) for n in range(40)), return_exceptions=True
        )
        refused = [output for output in outputs if isinstance(output, RequestRefused)]
        assert 0 < len(refused) <= 40 - 8
        assert "the queue is full" in str(refused[0])
        for n, output in enumerate(outputs):
            if isinstance(output, RequestOutput):
                assert output.outputs[0].token_ids == expected([n + 1], 20)

    run(scene())


def test_a_duplicate_id_is_refused_and_its_first_owner_goes_on(llm: AsyncLLM) -> None:
    async def scene() -> None:
        first = llm.generate([1], params(500), request_id="same")
        part = await anext(first)
        with pytest.raises(RequestRefused, match="'same' is already being served"):
            await whole(llm.generate([2], params(5), request_id="same"))
        part.add(await whole(first))
        assert part.outputs[0].token_ids == expected([1], 500)

    run(scene())


def test_what_is_wrong_with_a_request_raises_before_it_is_sent(llm: AsyncLLM) -> None:
    async def scene() -> None:
        with pytest.raises(InputError, match="the prompt is empty"):
            await whole(llm.generate([], params(5)))
        with pytest.raises(InputError, match="request_id='': it must be a valid string"):
            await whole(llm.generate([1], params(5), request_id=""))
        assert llm.engine.num_unfinished == 0

    run(scene())


def test_several_outputs_of_a_prompt_come_in_one_stream(llm: AsyncLLM) -> None:
    async def scene() -> None:
        output = await whole(llm.generate([5], params(6, n=3)))
        assert [sample.index for sample in output.outputs] == [0, 1, 2]
        assert all(sample.token_ids == expected([5], 6) for sample in output.outputs)

    run(scene())


def test_a_shutdown_ends_open_streams_with_an_error_that_says_so(slow: AsyncLLM) -> None:
    async def scene() -> None:
        task = asyncio.create_task(whole(slow.generate([1], params(3000))))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(slow.shutdown)
        with pytest.raises(EngineDeadError, match="the engine was shut down"):
            await task
        with pytest.raises(EngineDeadError):
            await whole(slow.generate([1]))
        with pytest.raises(EngineDeadError):
            await slow.report()

    run(scene())


@pytest.mark.parametrize("in_process", [False, True])
def test_another_event_loop_can_follow_a_closed_one_and_none_can_join_an_open_one(in_process: bool) -> None:
    llm = AsyncLLM(executor=SlowStandIn, skip_tokenizer=True, num_blocks=64, in_process=in_process)

    async def leave_in_the_middle() -> None:
        tasks = [asyncio.create_task(whole(llm.generate([n + 1], params(900)))) for n in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(InputError, match="belongs to another event loop"):
            await asyncio.to_thread(run, whole(llm.generate([1], params(3))))
        assert not tasks[0].done()

    async def scene() -> None:
        assert (await whole(llm.generate([1], params(3)))).outputs[0].token_ids == expected([1], 3)
        report = await llm.report()
        assert (report.num_running, report.num_free_blocks) == (0, 64)

    run(leave_in_the_middle())
    run(scene())
    run(scene())
    llm.shutdown()


@pytest.mark.parametrize("in_process", [False, True])
def test_whatever_a_step_raises_ends_every_stream_and_every_later_one(in_process: bool) -> None:
    llm = AsyncLLM(executor=ClumsyStandIn, skip_tokenizer=True, num_blocks=64, in_process=in_process)

    async def scene() -> None:
        streams = [whole(llm.generate([n + 1], params(30))) for n in range(3)]
        for error in await asyncio.gather(*streams, return_exceptions=True):
            with pytest.raises(EngineDeadError, match="the engine core has failed: RuntimeError: dropped it"):
                raise error
        with pytest.raises(EngineDeadError, match="dropped it"):
            await whole(llm.generate([1]))

    run(scene())
    llm.shutdown()


def test_a_shutdown_from_another_thread_disturbs_neither_loop_nor_step() -> None:
    llm = AsyncLLM(executor=SlowStandInProcesses, tensor_parallel=2, skip_tokenizer=True, in_process=True)

    async def scene() -> None:
        async with llm:
            tasks = [asyncio.create_task(whole(llm.generate([n + 1], params(900)))) for n in range(3)]
            await asyncio.sleep(0.2)
        for task in tasks:
            with pytest.raises(EngineDeadError, match="the engine was shut down"):
                await task

    asyncio.run(asyncio.wait_for(scene(), 30), debug=True)  # debug: calls into the loop from elsewhere raise
