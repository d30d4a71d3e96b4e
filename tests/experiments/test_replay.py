"""Replays: a recorded run's decisions against those of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import decision_log
from experiments.config import Point
from experiments.replay import compare, differences_between
from experiments.run import ensure, simulate_point
from schedulers import SLO, ChunkedPrefill, InputError, Limits, Request, SchedulerOutput
from schedulers.decisions import Arrival, StepDecisions
from sim.costs import Recorded
from sim.hardware import Device, ModelShape
from sim.replay import replay
from tests.experiments.command_line import twinserve
from tests.experiments.real_points import conversations, engine, tiny_model, workload
from tests.experiments.test_run import point

POLICIES = ("static", "fcfs", "chunked_prefill", "priority")

#: These draw, count, learn, or are told lengths.
INFORMED = ("past_future", "vtc", "mlfq", "lpm", "srpt predictor=noisy", "sjf scheduler.predictor=client_mean")


class Aging(ChunkedPrefill):
    """Looks at the clock, at arrival times and at token times, which must be those of the recorded run."""

    order_changes = True

    def order(self, request: Request, now: float) -> Any:
        return -((now - request.arrival_time) // 0.003), hash(now) % 3, hash(tuple(request.token_times)) % 5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def policy(name: str) -> list[str]:
    """The command line's words for a policy."""
    return [f"scheduler={name}"] if name in POLICIES else ["scheduler=custom", f"scheduler._target_={name}"]


@pytest.mark.parametrize("name", [*POLICIES, f"{__name__}.Aging"])
def test_the_simulator_decides_every_step_of_a_real_run_alike(name: str, tiny: Path, tmp_path: Path) -> None:
    trace = conversations(tmp_path / "trace.jsonl", 40)
    run = point(*engine(tiny), *workload(trace, tmp_path / "results"), *policy(name))
    ensure(run)
    comparison = compare(run.folder)
    assert comparison.differences == []
    assert comparison.num_steps > 40
    assert comparison.num_preemptions > 0
    assert comparison.num_cached_tokens > 0


@pytest.mark.parametrize("words", INFORMED)
def test_policies_that_know_more_than_the_queue_decide_alike_in_both_worlds_too(
    words: str, tiny: Path, tmp_path: Path
) -> None:
    trace = conversations(tmp_path / "trace.jsonl", 40)
    run = point(*engine(tiny), *workload(trace, tmp_path / "results"), *f"scheduler={words}".split())
    ensure(run)
    assert compare(run.folder).differences == []


def simulated(tmp_path: Path, *overrides: str) -> Point:
    """A simulated run that kept its decisions."""
    trace = conversations(tmp_path / "trace.jsonl", 40)
    run = point(*workload(trace, tmp_path / "results"), "mode.decisions=true", *overrides)
    ensure(run)
    return run


@pytest.mark.parametrize("words", INFORMED)
def test_a_simulated_run_of_a_policy_that_knows_more_is_replayed_alike_too(words: str, tmp_path: Path) -> None:
    overrides = [*f"scheduler={words}".split(), "workload=mixture", "workload.num_requests=60"]
    run = point("engine.num_blocks=3000", "mode.decisions=true", f"results={tmp_path}", *overrides)
    ensure(run)
    assert compare(run.folder).differences == []


@pytest.mark.parametrize("name", [*POLICIES, f"{__name__}.Aging"])
def test_a_simulated_run_is_replayed_alike_too(name: str, tmp_path: Path) -> None:
    comparison = compare(simulated(tmp_path, *policy(name)).folder)
    assert comparison.differences == []
    assert comparison.num_preemptions > 0


def test_a_router_that_holds_requests_does_so_whether_decisions_are_kept_or_not(tmp_path: Path) -> None:
    held = ("router=central_queue", "scheduler.max_num_seqs=2", "engine.num_blocks=40")
    kept = simulated(tmp_path, *held)
    trace = tmp_path / "trace.jsonl"
    forgotten = simulate_point(point(*workload(trace, tmp_path / "results"), *held))
    assert simulate_point(kept).requests == forgotten.requests
    assert simulate_point(kept).steps == forgotten.steps
    assert max(step.num_waiting for step in forgotten.steps) == 0
    assert compare(kept.folder).differences == []


def test_under_other_limits_decisions_differ_and_the_first_difference_is_said(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    config = (run.folder / "config.yaml").read_text()
    (run.folder / "config.yaml").write_text(config.replace("token_budget: 2048", "token_budget: 64"))
    comparison = compare(run.folder)
    assert comparison.differences
    done = twinserve("experiment=replay", f"path={run.folder}")
    assert done.returncode == 1, done.stderr
    assert "differing decisions; the first:\n  step " in done.stdout
    assert ": the run computes " in comparison.differences[0]


def test_a_run_alike_says_so_and_exits_with_0(tmp_path: Path) -> None:
    done = twinserve("experiment=replay", f"path={simulated(tmp_path).folder}")
    assert done.returncode == 0, done.stderr
    assert "steps compared" in done.stdout
    assert ": 0 differing decisions" in done.stdout


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("num_scheduled_tokens", {"a": 4}, "computes a (3 tokens), the simulator a (4 tokens)"),
        ("sampled_token_ids", {}, "samples for a, the simulator nothing"),
        ("admissions", {}, "admits a (16 tokens cached, blocks [0, 1]), the simulator nothing"),
        ("new_block_ids", {"b": [6]}, "appends b (blocks [5]), the simulator b (blocks [6])"),
        ("preempted_ids", ["c", "d"], "preempts c, the simulator c, d"),
        ("finished_ids", [], "takes as ended d, the simulator nothing"),
    ],
)
def test_each_kind_of_decision_is_compared(field: str, value: Any, expected: str) -> None:
    made: Any = {"a": (16, [0, 1])}
    admissions = {name: decision_log.Admission(*admission) for name, admission in made.items()}
    step = StepDecisions(7, 0.0, 1.0, [], {"a": 3}, admissions, {"b": [5]}, ["c"], ["d"], {"a": (1,)})
    assert differences_between(step, step) == []
    assert differences_between(step, step._replace(**{field: value})) == [f"step 7: the run {expected}"]


def test_the_order_of_a_batch_is_a_decision() -> None:
    step = StepDecisions(1, 0.0, 1.0, [], {"a": 1, "b": 1}, {}, {}, [], [], {})
    (difference,) = differences_between(step, step._replace(num_scheduled_tokens={"b": 1, "a": 1}))
    assert "computes a (1 tokens), b (1 tokens), the simulator b" in difference


def test_aborts_are_replayed_between_the_steps_where_they_came() -> None:
    limits = Limits(token_budget=32, max_num_seqs=4, num_blocks=12, block_size=4)
    recorded = driven_by_hand(ChunkedPrefill(limits))
    assert any(isinstance(news, str) for step in recorded for news in step.news)
    times = [step.end_s - step.start_s for step in recorded]
    cost = Recorded(model=MODEL, device=DEVICE, step_times_s=times)
    replayed = list(replay(recorded, ChunkedPrefill(limits), cost))
    assert replayed == recorded


MODEL = ModelShape("m", "LlamaForCausalLM", 1, 8, 8, 1, 1, 8, 10, 100)
DEVICE = Device("d", 1, 1.0, 1.0, 1.0, 1.0, 0.0)


def driven_by_hand(scheduler: ChunkedPrefill) -> list[StepDecisions]:
    """Twelve requests, of which every third is aborted: one while it waits, others while they run, one at its end."""
    from schedulers import StepResult

    steps: list[StepDecisions] = []
    news: list[Arrival | str] = []
    now, coming = 1000.0, iter(range(12))
    while True:
        for number in (next(coming, None), next(coming, None)):
            if number is not None:
                request = Request(f"r{number}", now, [number] * (5 + number), max_tokens=3 + number)
                scheduler.add_request(request)
                news.append(Arrival.of(request))
        aborted = [name for name in scheduler.live if int(name[1:]) % 3 == len(steps) % 4 == 2]
        for request_id in aborted:
            scheduler.abort_request(request_id, now)
        news += aborted
        if not scheduler.live:
            return steps
        start = now
        output: SchedulerOutput = scheduler.schedule(start)
        result = StepResult({name: (len(steps),) for name in output.sampled_ids})
        scheduler.update_from_output(output, result, start + 0.25)
        steps.append(StepDecisions.of(output, result, news, start, start + 0.25))
        now, news = start + 0.5, []


def test_the_log_reads_back_as_it_was_written(tmp_path: Path) -> None:
    request = Request(
        "r", 1.5, [1, 2, 3], max_tokens=5, min_tokens=1, eos_token_id=0, stop_token_ids=[7, 4], priority=2,
        client_id="c", session_id="s", slo=SLO(ttft_s=1.0), predicted_output_tokens=3.5, cache_salt="x",
        prompt_logprobs=True,
    )  # fmt: skip
    counted = Request("n", 2.5, num_prompt_tokens=40, prompt_block_hashes=[5, 6])
    admissions = {"r": decision_log.Admission(0, [3])}
    step = StepDecisions(
        1, 0.1, 0.2, [Arrival.of(request), "n", Arrival.of(counted)], {"r": 3}, admissions, {}, [], [], {"r": [9]}
    )
    (tmp_path / decision_log.FILE).write_bytes(decision_log.encode([step]))
    (read,) = decision_log.read(tmp_path)
    assert read == step
    again = next(news for news in read.news if isinstance(news, Arrival)).request()
    assert Arrival.of(again) == Arrival.of(request)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "has no decisions.jsonl.gz"), (b"no gzip", "is damaged"), (decision_log.encode([]), "holds no step")],
)
def test_a_folder_without_a_log_is_refused_by_name(content: bytes | None, expected: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / decision_log.FILE).write_bytes(content)
    with pytest.raises(InputError, match=expected):
        compare(tmp_path)
