"""Requests that follow others, in both worlds: when they come, and what of the last answer the cache still has."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments import storage
from experiments.columns import RequestColumns
from experiments.composed import CONF, Composed
from experiments.config import Point, read_point
from experiments.run import ensure
from tests.experiments.real_points import SHAPE, engine, tiny_model

CHAT = [
    "workload=sessions", "workload.num_sessions=15", "workload.rate=50", "workload.think_s=0.02",
    "workload.turns.max_tokens=5", "workload.prompt.median_tokens=9", "workload.prompt.max_tokens=20",
    "workload.output.median_tokens=9", "workload.output.max_tokens=20", "workload.prefixes.tokens.num_tokens=40",
]  # fmt: skip

USERS = ["workload=closed_loop", "workload.num_requests=40"]


def point(*overrides: str) -> Point:
    """The point of a command line."""
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["cost=roofline", *overrides])
    return read_point(Composed(config, {"scheduler": "chunked_prefill"}, []))


def run(*arguments: str) -> tuple[Point, dict[str, int], RequestColumns]:
    """A point, made; the places of its requests in the columns, by id."""
    made = point(*arguments)
    ensure(made)
    requests = storage.read_run(made.folder).requests
    return made, {name: place for place, name in enumerate(requests.request_id)}, requests


def test_a_closed_loop_never_has_more_in_flight_than_users_and_each_thinks_after_the_answer(tmp_path: Path) -> None:
    made, at, done = run(*USERS, "workload.num_users=5", f"results={tmp_path}")
    for request in made.workload.requests(0):
        if request.follows:
            end_s = done.finish_s[at[request.follows]]
            assert done.arrival_s[at[request.request_id]] == pytest.approx(end_s + request.think_s)
    events = sorted([(time, 1) for time in done.arrival_s] + [(time, -1) for time in done.finish_s])
    assert max(np.cumsum([change for _, change in events])) <= 5
    assert len(done) == 40


def test_users_who_do_not_think_keep_the_engine_busy(tmp_path: Path) -> None:
    made, _, done = run(*USERS, "workload.num_users=4", "workload.think_s=0", f"results={tmp_path}")
    steps = storage.read_run(made.folder).steps
    assert (steps.start_s[1:] == steps.end_s[:-1]).all()
    assert len(done) == 40


def found(made: Point, at: dict[str, int], done: RequestColumns) -> list[tuple[int, int]]:
    """For each turn after a first: tokens that were found, and those of the turn before that had been computed."""
    turns = {request.request_id: request for request in made.workload.requests(0)}
    pairs = []
    for request in turns.values():
        if request.follows:
            before = turns[request.follows]
            computed = before.num_prompt_tokens + before.num_output_tokens - 1
            pairs.append((int(done.num_cached_tokens[at[request.request_id]]), computed))
    assert len(pairs) > 15
    return pairs


def sessions_are_sound(made: Point, at: dict[str, int], done: RequestColumns) -> None:
    """Every turn ran to its length, after the one before it, and found all full blocks of it, answer included."""
    for request in made.workload.requests(0):
        place = at[request.request_id]
        assert done.num_prompt_tokens[place] == request.num_prompt_tokens
        assert done.num_output_tokens[place] == request.num_output_tokens
        if request.follows:
            waited_s = done.arrival_s[place] - done.finish_s[at[request.follows]]
            assert waited_s >= request.think_s - 1e-9
    assert all(cached == computed // 16 * 16 for cached, computed in found(made, at, done))


def test_a_turn_finds_the_answer_of_the_last_one_in_the_simulators_cache(tmp_path: Path) -> None:
    sessions_are_sound(*run(*CHAT, f"results={tmp_path}"))


def test_a_turn_finds_the_answer_that_the_real_engine_gave(tmp_path: Path) -> None:
    shape = [f"model.{key}={value}" for key, value in SHAPE.items()]
    real = [*engine(tiny_model(tmp_path / "tiny")), "mode.in_process=true", "engine.num_blocks=800"]
    sessions_are_sound(*run(*CHAT, *shape, *real, f"results={tmp_path}"))


def test_turns_of_a_session_are_in_order_and_share_its_id(tmp_path: Path) -> None:
    made, at, done = run(*CHAT, f"results={tmp_path}")
    turns: dict[str, list[int]] = {}
    for request in made.workload.requests(0):
        turns.setdefault(request.session_id, []).append(at[request.request_id])
    for session_id, places in turns.items():
        assert {done.session_id[place] for place in places} == {session_id}
        assert all(done.arrival_s[after] >= done.finish_s[before] for before, after in pairwise(places))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [run(*CHAT, f"results={tmp_path / name}")[0].folder for name in ("one", "other")]
    one, other = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders)
    assert one == other


def test_a_workload_without_a_rate_says_so_in_its_name() -> None:
    assert "rate=none" in point("workload=closed_loop").name
    assert "rate=8" in point("workload=shared_prefixes").name
