"""What is said of a workload in both worlds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments import decision_log, run
from experiments.compare import AT_ONCE, capacity_of, lines_of, priced_share
from experiments.comparison import METRICS, Compared, rankings, verdicts
from experiments.composed import CONF, Composed
from experiments.config import read_point
from experiments.pace import Pace
from experiments.report.compared import compared_chart
from experiments.run import simulate_point
from schedulers import InputError
from tests.experiments.points import point


def compared(policy: str, engine: list[float], simulator: float, load: float = 0.5) -> Compared:
    """All metrics have the same value."""
    return Compared(policy, load, 1.0, dict.fromkeys(METRICS, engine), dict.fromkeys(METRICS, simulator))


def test_an_error_is_relative_to_the_middle_of_the_engines_runs_and_so_is_their_spread() -> None:
    item = compared("fcfs", [90.0, 100.0, 110.0], 105.0)
    assert item.error("TTFT P50") == pytest.approx(0.05)
    assert item.spread("TTFT P50") == pytest.approx(0.2)


def test_an_error_at_the_machines_pace_is_one_of_all_runs_and_its_readings_are_told() -> None:
    plain = compared("fcfs", [100.0, 300.0, 110.0], 200.0)
    paces = [[Pace(0.9, 0.5), Pace(1.1, 0.5)], [], [Pace(1.0, 0.6), Pace(1.0, 0.4)]]
    item = replace(plain, paces=paces, at_pace=dict.fromkeys(METRICS, 121.0))
    assert item.error_at_pace("E2E P50") == pytest.approx(0.1)
    assert item.paces_in_words() == "decodes x0.90 to x1.10, prompts x0.40 to x0.60; 1 of 3 runs not gauged"
    assert plain.error_at_pace("E2E P50") is None


def test_an_error_at_the_pace_of_each_runs_own_steps_is_the_median_of_the_runs() -> None:
    plain = compared("fcfs", [100.0, 200.0, 400.0], 200.0)
    item = replace(plain, at_own_pace={name: [110.0, 190.0, 404.0] for name in METRICS})
    assert item.error_at_own_pace("E2E P50") == pytest.approx(0.01)
    assert plain.error_at_own_pace("E2E P50") is None
    verdict = verdicts([plain, item])[1]
    assert verdict.startswith("simulated at the pace of each run's own steps, one number a run: of 6 figures ")
    assert "6 are within 10%" in verdict


def test_verdicts_count_the_figures_that_are_close_and_those_within_the_spread() -> None:
    items = [compared("a", [100.0, 130.0], 109.25), compared("b", [100.0, 100.0], 80.0)]
    plain, itself = verdicts(items)
    assert plain.startswith("predicted from the workload and the prices alone: of 12 figures ")
    assert plain.endswith("6 are within 10% and 6 within the engine's own spread; the largest error is -20.0%")
    gauged = replace(items[1], paces=[[Pace(1, 1)], []], at_pace=dict.fromkeys(METRICS, 104.0))
    assert itself.startswith(
        "for comparison, a run of the engine as the prediction of its other runs: 6 are within 10%"
    )
    _, at_pace, _ = verdicts([items[0], gauged])
    assert at_pace.startswith("predicted at the machine's pace: of 6 figures ")
    assert at_pace.endswith("6 are within 10% and 0 within the engine's own spread; the largest error is +4.0%")


def test_the_engine_predicts_itself_run_by_run_from_the_middle_of_the_others() -> None:
    *_, told = verdicts([compared("a", [100.0, 100.0, 105.0, 140.0], 0.0), compared("b", [1.0, 1.0, 1.0, 2.0], 0.0)])
    assert told.endswith(": 9 are within 10% in the mean, 0 to 12 from run to run")


def test_a_single_run_has_no_spread_and_nothing_is_said_to_be_within_it() -> None:
    item = compared("fcfs", [100.0], 100.0)
    assert item.spread("TTFT P50") is None
    (verdict,) = verdicts([item])
    assert verdict.endswith("6 are within 10%; the largest error is +0.0%")
    assert "      100.0       -      100.0   +0.0%" in lines_of([item])[2]


def test_columns_stand_below_each_other_whatever_the_names_of_the_policies() -> None:
    items = [compared("fcfs", [100.0, 130.0], 109.25), compared(30 * "a", [100.0, 100.0], 80.0)]
    paces = {"priced": [1.234], "paces": [[Pace(1, 1)], []], "at_pace": dict.fromkeys(METRICS, 104.0)}
    paces["at_own_pace"] = {name: [104.0, 1000.0] for name in METRICS}
    head, *rows = lines_of([items[0], replace(items[1], **paces)])[1 : 4 + 2 * len(METRICS)]
    assert all(len(line) == len(head) for line in rows if line.startswith("fcfs"))
    assert len({line.index(".") for line in rows if "pace" not in line and "priced" not in line}) == 1
    (priced,) = (line for line in rows if "priced" in line)
    assert len(priced) == head.index("error") + len("error")
    assert all(line.endswith("%") and len(line) == len(head) for line in rows if line.startswith("aaa"))


def test_the_chart_has_room_for_many_policies_and_for_long_names() -> None:
    items = [compared("fcfs", [100.0, 130.0], 109.25)]
    width, height = compared_chart(items).panel_size_in
    assert compared_chart(items * 40).panel_size_in == (width, pytest.approx(8.0))
    assert compared_chart([*items, compared(50 * "a", [1.0], 1.0)]).panel_size_in > (1.5 * width, height)


def test_runs_of_which_none_was_gauged_are_told_of() -> None:
    lines = lines_of([replace(compared("fcfs", [100.0, 130.0], 110.0), paces=[[], []])])
    assert any("the machine's pace: 2 of 2 runs not gauged" in line for line in lines)
    assert "at its pace" not in lines[1]


def test_policies_that_the_engine_tells_apart_must_be_in_its_order() -> None:
    right = rankings([compared("a", [10, 11], 10), compared("b", [20, 21], 19)])
    assert [ranking.wrong for ranking in right] == [[], []]
    assert "right wherever it can be told" in str(right[0])
    swapped = rankings([compared("a", [10, 11], 30), compared("b", [20, 21], 19)])
    assert swapped[0].wrong == [("a", "b")]
    assert "WRONG, a before b in the engine" in str(swapped[0])


def test_policies_whose_runs_overlap_may_be_in_any_order() -> None:
    (ttft, _) = rankings([compared("a", [10, 20], 16), compared("b", [15, 25], 15)])
    assert ttft.wrong == []
    assert ttft.close == [("a", "b")]
    assert "does not tell apart a and b" in str(ttft)


def test_policies_are_ranked_under_each_load_apart_and_one_alone_is_not() -> None:
    items = [compared("a", [1], 1), compared("b", [2], 2), compared("a", [9], 9, load=0.8)]
    assert [ranking.load for ranking in rankings(items)] == [0.5, 0.5]


def test_single_runs_tell_no_order() -> None:
    (ttft, _) = rankings([compared("a", [10], 16), compared("b", [15], 15)])
    assert (ttft.wrong, ttft.close) == ([], [("a", "b")])


def test_a_metric_that_no_output_has_is_left_out() -> None:
    told = {group: {key: 1.0} for _, _, (group, key) in METRICS.values()}
    for _, _, (group, key) in METRICS.values():
        told[group][key] = 1.0
    single = {**told, "tpot_s": {"p50": None, "p90": None}}  # every output is one token
    items = [Compared.of(name, 0.5, 1.0, [told, single], told) for name in ("a", "b")]
    assert [metric for metric in METRICS if metric not in items[0].engine] == ["TPOT P50", "TPOT P90"]
    assert items[0].simulator.keys() == items[0].engine.keys()
    assert [ranking.metric for ranking in rankings(items)] == ["TTFT P90"]


def test_the_capacity_of_sessions_is_in_sessions_as_their_rate_is() -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["cost=roofline", "workload=sessions", "workload.num_sessions=20"])
    sessions = Composed(config, {"scheduler": "chunked_prefill", "workload": "sessions"}, [])
    done = simulate_point(read_point(sessions.with_rate(AT_ONCE))).requests
    assert len(done) > 20
    assert capacity_of(sessions) == pytest.approx(20 / max(record.finish_s for record in done))


def test_a_workload_without_a_rate_cannot_be_put_under_a_load() -> None:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["cost=roofline", "workload=closed_loop"])
    with pytest.raises(InputError, match=r"workload=closed_loop has no workload\.rate"):
        capacity_of(Composed(config, {"scheduler": "chunked_prefill", "workload": "closed_loop"}, []))


def test_what_passes_between_steps_of_a_request_counts_as_taken_for_their_prices_include_it(tmp_path: Path) -> None:
    ran = point("mode.decisions=true", "workload.rate=0.5", f"results={tmp_path}")
    run.ensure(ran)
    assert priced_share(ran.folder, ran.cost) == pytest.approx(1.0)
    steps = decision_log.read(ran.folder)
    idle = [not (a.num_scheduled_tokens.keys() & b.num_scheduled_tokens.keys()) for a, b in pairwise(steps)]
    assert 0 < sum(idle) < len(steps) / 2
    late = [step._replace(start_s=step.start_s + i, end_s=step.end_s + i) for i, step in enumerate(steps)]
    (ran.folder / decision_log.FILE).write_bytes(decision_log.encode(late))
    taken_s = sum(step.end_s - step.start_s for step in steps)
    expected = taken_s / (taken_s + len(steps) - 1 - sum(idle))
    assert priced_share(ran.folder, ran.cost) == pytest.approx(expected)
