"""Service, gaps and Jain's index, on requests whose figures can be worked out by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import storage
from experiments.columns import RequestColumns
from experiments.fairness import USUAL_WEIGHTS, Fairness, summarize
from experiments.report import write_run_page
from experiments.run import ensure
from experiments.summary import summarize as summarize_run
from schedulers.records import RequestRecord
from tests.experiments.points import point
from tests.experiments.synthetic import toy_run


def request(
    client: str, arrival: float, scheduled: float | None, tokens: tuple[float, ...], *, prompt: int = 100,
    cached: int = 0, finish: float | None = None,
) -> RequestRecord:  # fmt: skip
    end = tokens[-1] if finish is None else finish
    reason = "stop" if tokens and finish is None else "abort"
    return RequestRecord(
        f"{client}{arrival}", arrival, scheduled, end, tokens, reason, prompt, len(tokens), cached, 0, 0, client, "",
        None, None,
    )  # fmt: skip


def fairness_of(records: list[RequestRecord], weights: tuple[float, float] = USUAL_WEIGHTS) -> Fairness:
    return Fairness.of([RequestColumns.of(records)], weights)


def at(fairness: Fairness, client: str, time_s: float) -> float:
    return float(np.interp(time_s, fairness.time_s, fairness.service[fairness.clients.index(client)]))


def test_a_prompt_counts_evenly_until_the_first_token_and_each_token_twice_when_it_is_known() -> None:
    fairness = fairness_of([request("a", 0.0, 2.0, (4.0, 5.0, 10.0)), request("b", 0.0, None, (), finish=10.0)])
    assert [at(fairness, "a", time) for time in (1, 3, 4.5, 7, 10)] == pytest.approx([0, 50, 102, 104, 106], abs=0.2)
    assert at(fairness, "b", 10) == 0


def test_cached_tokens_and_prompts_that_never_gave_a_token_count_nothing() -> None:
    cached = request("a", 0.0, 1.0, (2.0,), cached=60)
    aborted = request("b", 0.0, 1.0, (), finish=5.0)
    fairness = fairness_of([cached, aborted])
    assert fairness.service[:, -1].tolist() == pytest.approx([42, 0])


def test_weights_are_as_given() -> None:
    fairness = fairness_of([request("a", 0.0, 1.0, (2.0, 3.0))], weights=(0.5, 10))
    assert fairness.service[0, -1] == pytest.approx(70)


def serve(client: str, count: int, every: float, until: float) -> list[RequestRecord]:
    """A client with `count` requests at time 0, of which one starts every so often and has its tokens at once."""
    starts = [(number + 1) * every for number in range(count)]
    return [request(client, 0.0, start, (start + 1e-3,), prompt=98) for start in starts if start < until]


def test_the_gap_between_clients_that_both_wait_is_what_one_was_served_more() -> None:
    fairness = fairness_of([*serve("a", 100, 0.1, 10.0), *serve("b", 50, 0.2, 10.0)])
    assert fairness.gap.max() == pytest.approx(5000, rel=0.05)  # 99 requests against 49, of 100 each
    assert fairness.widest in (("a", "b"), ("b", "a"))
    assert fairness.jain_index == pytest.approx(0.9, abs=0.01)  # rates of 2 to 1: 9 / (2 * 5)


def test_clients_served_alike_have_no_gap_beyond_a_request_and_a_jain_index_of_one() -> None:
    fairness = fairness_of([*serve("a", 100, 0.1, 10.0), *serve("b", 100, 0.1, 10.0)])
    assert fairness.gap.max() <= 101
    assert fairness.jain_index == pytest.approx(1.0)


def test_while_only_one_client_waits_no_gap_grows() -> None:
    fairness = fairness_of([*serve("a", 100, 0.1, 10.0), request("b", 0.0, 0.0, (0.5,))])
    assert fairness.gap.max() == 0
    assert fairness.widest is None
    assert fairness.jain_index is None


def test_a_gap_begins_anew_when_a_client_has_stopped_waiting() -> None:
    """Both wait in 0-4 s and in 6-10 s; in each a is served 4,000 more, and in between 2,000 that count for nothing."""
    served = serve("a", 100, 0.1, 10.0)
    waits = [request("b", 0.0, 4.0, (4.5,)), request("b", 6.0, 10.0, (10.5,))]
    fairness = fairness_of([*served, *waits])
    assert fairness.gap.max() == pytest.approx(4000, rel=0.05)


def summary_of(records: list[RequestRecord], pieces: int = 1) -> dict[str, Any] | None:
    columns = [RequestColumns.of(records[i::pieces]) for i in range(pieces)]
    span_s = (min(record.arrival_s for record in records), max(record.finish_s for record in records))
    return summarize(columns, Counter(record.client_id for record in records), span_s)


def test_a_run_in_pieces_has_the_figures_of_the_whole() -> None:
    _, requests = toy_run(rate=30, num_requests=200, slots=8)
    named = [record._replace(client_id="abc"[number % 3]) for number, record in enumerate(requests)]
    whole, parts = summary_of(named), summary_of(named, pieces=7)
    assert whole is not None
    assert parts is not None
    assert whole["largest_gap"] > 0
    assert whole["largest_gap"] == pytest.approx(parts["largest_gap"])
    assert whole["jain_index"] == pytest.approx(parts["jain_index"])


def test_a_summary_has_fairness_only_where_there_are_several_clients() -> None:
    assert summary_of([request("a", 0.0, 1.0, (2.0,))]) is None
    both = summary_of([request("a", 0.0, 1.0, (2.0,)), request("b", 0.0, 1.0, (2.0,))])
    assert both is not None
    assert set(both["clients"]) == {"a", "b"}
    assert both["clients"]["a"]["service"] == pytest.approx(102)


def test_requests_that_all_ended_at_once_have_a_summary() -> None:
    ends = [request(client, 1.0, None, (), finish=1.0) for client in "ab"]
    summary = summary_of(ends)
    assert summary is not None
    assert (summary["largest_gap"], summary["jain_index"]) == (0, None)


def test_a_run_s_page_shows_its_clients_when_there_are_several(tmp_path: Path) -> None:
    steps, requests = toy_run(rate=8, num_requests=60)
    named = [record._replace(client_id="ab"[number % 2]) for number, record in enumerate(requests)]
    storage.write_run(tmp_path, "", steps, named, summarize_run(steps, named, None))
    assert "Clients side by side" in write_run_page(tmp_path).read_text()
    assert (tmp_path / "figures" / "clients.png").is_file()


def test_a_workload_with_two_clients_leaves_its_fairness_in_the_summary(tmp_path: Path) -> None:
    run = point("workload=two_classes", f"results={tmp_path}")
    ensure(run)
    assert set(storage.read_summary(run.folder)["fairness"]["clients"]) == {"people", "job"}
