"""Deaths and departures: everyone who waits is told, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from real import LLM, AsyncLLM, EngineDeadError, LLMEngine, SamplingParams
from schedulers import InputError
from tests.real.stand_in import SlowStandIn, SlowStandInProcesses, StandIn, expected

ROOT = Path(__file__).resolve().parents[2]
SHARED_MEMORY, FDS = Path("/dev/shm"), Path("/proc/self/fd")  # noqa: S108 - only looked at
LONG = SamplingParams(max_tokens=2000)


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Checks that a test leaves no process, temporary file, shared memory or file descriptor."""
    # Not pytest's own folder, whose name may be too long for a socket's.
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        folder = Path(name)
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr("tempfile.tempdir", None)
        shared_memory = named_shared_memory()
        num_fds = len(list(FDS.iterdir()))
        yield folder
        eventually(lambda: not psutil.Process().children(recursive=True))
        assert list(folder.iterdir()) == []
        assert named_shared_memory() <= shared_memory
        assert len(list(FDS.iterdir())) <= num_fds


def named_shared_memory() -> set[Path]:
    """What multiprocessing or we could have left; other programs have theirs there, too."""
    return {path for path in SHARED_MEMORY.iterdir() if path.name.startswith(("psm_", "twinserve"))}


def eventually(is_so: Callable[[], Any], timeout_s: float = 5.0) -> Any:
    """Wait for something that is about to be so."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = is_so()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def processes(title: str, parent: psutil.Process | None = None) -> list[psutil.Process]:
    """Descendants with this title."""
    found = []
    for child in (parent or psutil.Process()).children(recursive=True):
        try:
            if title in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            pass
    return found


def kill_soon(title: str) -> threading.Timer:
    """Kill the one process of that title with -9, half a second from now, when a step is under way."""

    def kill() -> None:
        [victim] = processes(title)
        victim.kill()

    timer = threading.Timer(0.5, kill)
    timer.start()
    return timer


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("twinserve: engine core", r"the engine core \(process \d+\) was killed by SIGKILL"),
        ("twinserve: worker 0", r"twinserve: worker 0 of 2 \(process \d+\) was killed by SIGKILL in step \d+"),
        ("twinserve: worker 1", r"twinserve: worker 1 of 2 \(process \d+\) was killed by SIGKILL in step \d+"),
    ],
)
def test_a_process_killed_under_load_ends_every_request_within_five_seconds(title: str, message: str) -> None:
    async def many_clients() -> list[Any]:
        async def one(number: int) -> None:
            async for _ in llm.generate([number + 1], LONG):
                pass

        return await asyncio.gather(*(one(number) for number in range(20)), return_exceptions=True)

    llm = AsyncLLM(executor=SlowStandInProcesses, tensor_parallel=2, skip_tokenizer=True)
    start = time.monotonic()
    kill_soon(title)
    errors = asyncio.run(many_clients())
    assert time.monotonic() - start < 0.5 + 5.0
    assert len(errors) == 20
    for error in errors:
        assert isinstance(error, EngineDeadError)
        with pytest.raises(EngineDeadError, match=message):
            raise error
    llm.shutdown()


def test_offline_generation_ends_with_the_core_and_so_does_everything_after() -> None:
    with LLM(executor=SlowStandIn, skip_tokenizer=True) as llm:
        kill_soon("twinserve: engine core")
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
                llm.generate([[1]], LONG)
        assert llm.engine.num_unfinished == 0


def test_a_worker_killed_while_nobody_asks_anything_is_noticed() -> None:
    with LLM(executor=SlowStandInProcesses, tensor_parallel=2, skip_tokenizer=True) as llm:
        processes("twinserve: worker 1")[0].kill()
        eventually(lambda: not processes("twinserve: engine core"))
        with pytest.raises(EngineDeadError, match="worker 1 of 2"):
            llm.generate([[1]])


def test_a_core_killed_while_it_loads_is_noticed() -> None:
    def kill_core() -> None:
        eventually(lambda: processes("twinserve: engine core"))[0].kill()

    threading.Timer(0.0, kill_core).start()
    with pytest.raises(EngineDeadError, match="was killed by SIGKILL"):
        LLM(executor=SlowStandInProcesses, tensor_parallel=2, skip_tokenizer=True)


def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(InputError, match=r"config\.json"):
        LLM(str(empty), executor=StandIn, skip_tokenizer=True)
    with pytest.raises(InputError, match=r"no tokenizer could be read from it .*; give tokenizer=PATH, or"):
        LLM(tokenizer=str(empty), executor=SlowStandIn)
    with pytest.raises(InputError, match="FCFS cannot be made with watermarks"):
        LLM(executor=StandIn, skip_tokenizer=True, scheduler="fcfs", scheduler_params={"watermarks": 1})
    with pytest.raises(InputError, match="max_model_len=10000: the model was made for at most 8192 tokens"):
        LLM(executor=StandIn, skip_tokenizer=True, max_model_len=10000)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_caller_dies_all_its_processes_do(kill: signal.Signals) -> None:
    script = """
        from real import LLM, SamplingParams
        from tests.real.stand_in import SlowStandInProcesses
        llm = LLM(executor=SlowStandInProcesses, tensor_parallel=2, skip_tokenizer=True)
        print("ready", flush=True)
        llm.generate([[1]], SamplingParams(max_tokens=5000))
    """
    with start_script(script) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
        family = psutil.Process(caller.pid).children(recursive=True)
        assert sorted(" ".join(member.cmdline()).strip() for member in family) == [
            "twinserve: engine core",
            "twinserve: worker 0 of 2",
            "twinserve: worker 1 of 2",
        ]
        caller.send_signal(kill)
        caller.wait()
        eventually(lambda: not any(member.is_running() and member.status() != "zombie" for member in family))


def test_ctrl_c_cancels_the_prompts_and_the_engine_can_be_used_again() -> None:
    script = """
        import sys
        from real import LLM, SamplingParams
        from tests.real.stand_in import SlowStandIn, expected
        with LLM(executor=SlowStandIn, skip_tokenizer=True, in_process=sys.argv[1] == "in") as llm:
            print("ready", flush=True)
            try:
                llm.generate([[1], [2], [3]], SamplingParams(max_tokens=5000))
            except KeyboardInterrupt:
                assert llm.engine.num_unfinished == 0
                [output] = llm.generate([4], SamplingParams(max_tokens=5))
                assert output.outputs[0].token_ids == expected([4], 5)
                report = llm.engine.report()
                print(report.num_running, report.num_waiting, flush=True)
    """
    for where in ("in", "out"):
        with start_script(script, where) as caller:
            assert caller.stdout is not None
            assert caller.stdout.readline() == "ready\n"
            time.sleep(0.3)
            os.killpg(caller.pid, signal.SIGINT)  # as a terminal does, to the whole group
            assert caller.stdout.read() == "0 0\n"
            assert caller.wait() == 0


def test_a_script_that_just_ends_leaves_nothing() -> None:
    script = """
        from real import LLM
        from tests.real.stand_in import StandIn
        llm = LLM(executor=StandIn, skip_tokenizer=True)
        print(llm.generate([[1]])[0].outputs[0].token_ids, flush=True)
    """
    with start_script(script) as caller:
        assert caller.stdout is not None
        assert caller.stdout.read() == f"{expected([1], 16)}\n"
        assert caller.wait() == 0


def test_an_async_engine_that_is_forgotten_ends() -> None:
    async def ask() -> None:
        llm = AsyncLLM(executor=StandIn, skip_tokenizer=True, num_blocks=64)
        async for _ in llm.generate([1]):
            pass

    num_threads = threading.active_count()
    asyncio.run(ask())
    gc.collect()
    eventually(lambda: not processes("twinserve: engine core"))
    eventually(lambda: threading.active_count() == num_threads)


def test_threads_that_use_one_engine_take_their_turns() -> None:
    with LLM(executor=StandIn, skip_tokenizer=True, num_blocks=64) as llm:

        def ask(number: int) -> bool:
            outputs = llm.generate([[number]] * 20, SamplingParams(max_tokens=30))
            return all(output.outputs[0].token_ids == expected([number], 30) for output in outputs)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(ask, range(1, 9)))


def test_a_policy_of_the_script_itself_works_and_needs_the_usual_guard() -> None:
    script = """
        from real import LLM
        from schedulers import ChunkedPrefill
        from tests.real.stand_in import StandInProcesses
        class Mine(ChunkedPrefill):
            pass
        {guard}
            with LLM(executor=StandInProcesses, skip_tokenizer=True, scheduler=Mine) as llm:
                print(len(llm.generate([[1]])[0].outputs[0].token_ids), flush=True)
    """
    with start_script(script.format(guard='if __name__ == "__main__":')) as caller:
        assert caller.stdout is not None
        assert caller.stdout.read() == "16\n"
    with start_script(script.format(guard="if True:"), stderr=subprocess.PIPE) as caller:
        assert 'put what it does below `if __name__ == "__main__":`' in caller.communicate()[1]


def test_a_local_class_is_refused_with_a_way_out() -> None:
    class Mine(StandIn):
        pass

    with pytest.raises(InputError, match="define classes at the top level of a module, or"):
        LLM(executor=Mine, skip_tokenizer=True)


def test_random_aborts_of_2000_requests_leave_all_blocks_free_and_memory_flat() -> None:
    source = random.Random(0)
    arguments: dict[str, Any] = {"num_blocks": 64, "block_size": 4, "token_budget": 128, "max_num_seqs": 16}
    with LLMEngine(executor=StandIn, skip_tokenizer=True, **arguments) as engine:
        core = psutil.Process(processes("twinserve: engine core")[0].pid)
        memory = []
        live: list[str] = []
        finished = 0
        for number in range(2000):
            request_id = f"r{number}"
            prompt = [source.randrange(1, 40) for _ in range(source.randrange(1, 60))]
            engine.add_request(request_id, prompt, SamplingParams(max_tokens=source.randrange(1, 30)))
            live.append(request_id)
            while len(live) > 40 or (live and source.random() < 0.5):
                if source.random() < 0.3:
                    engine.abort_request(live.pop(source.randrange(len(live))))
                else:
                    done = {part.request_id for part in engine.step() if part.finished}
                    finished += len(done)
                    live = [other for other in live if other not in done]
            if number in (400, 1999):
                memory.append(core.memory_info().rss + psutil.Process().memory_info().rss)
        while engine.num_unfinished:
            engine.step()
        report = engine.report()
    assert (report.num_running, report.num_waiting, report.num_free_blocks) == (0, 0, 64)
    assert 200 < finished < 1900
    assert memory[1] - memory[0] < 4e6


@contextmanager
def start_script(script: str, *arguments: str, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python script in a process group of its own, as from a terminal."""
    path = Path(os.environ["TMPDIR"]).parent / f"script-{time.monotonic_ns()}.py"
    path.write_text(textwrap.dedent(script))
    with subprocess.Popen(
        [sys.executable, str(path), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            path.unlink()
