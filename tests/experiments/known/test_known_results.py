"""Known results, made small: what the papers claim comes out, and what cannot come out is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.columns import RequestColumns
from experiments.composed import CONF, Composed
from experiments.known.lpm import known_lpm
from experiments.known.past_future import known_past_future
from experiments.known.result import Claim, KnownResult, tell
from experiments.known.sarathi import capacity, known_sarathi
from experiments.known.shortest_first import known_shortest_first
from experiments.known.vtc import Question, Service, known_vtc
from experiments.report.charts import Chart, Panel
from schedulers import InputError, RequestRecord

VTC = [
    "workload.num_requests=700",
    "workload.rate=18",
    "workload.prompt.num_tokens=64",
    "workload.output.num_tokens=64",
    "engine.num_blocks=125",
]
SARATHI = ["cost=roofline", "workload.num_requests=64", "question.precision=0.5"]
PAST_FUTURE = [
    "workload.num_requests=160",
    "workload.max_tokens=768",
    "workload.output.tokens_at={0:256,100:768}",
    "engine.num_blocks=1200",
    "question.settings.conservative.memory_share=[1.0]",
    "question.settings.ratio.output_share=[0.5]",
    "question.settings.aggressive.memory_share=[0.95]",
    "question.settings.past_future.reserve=[0.05]",
]
SHORTEST_FIRST = ["question.rates=[4.5]", "question.sigmas=[0.5]", "workload.num_sessions=300"]
LPM = ["question.num_blocks=[2000,8000]", "workload.num_requests=300"]


def composed(name: str, folder: Path, overrides: list[str]) -> Composed:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", [f"experiment={name}", f"results={folder}", *overrides])
    return Composed(config, {"mode": "sim", "scheduler": "chunked_prefill"}, [])


def disagreements(result: KnownResult) -> list[Claim]:
    assert len(result.claims) > 2
    return [claim for claim in result.claims if not claim.agrees]


# -- what papers claim -------------------------------------------------------------------------------------------------


def test_vtc_keeps_two_overloaded_clients_together_and_fcfs_does_not(tmp_path: Path) -> None:
    assert disagreements(known_vtc(composed("known_vtc", tmp_path, VTC))) == []


def test_chunks_and_hybrid_batches_need_each_other(tmp_path: Path) -> None:
    assert disagreements(known_sarathi(composed("known_sarathi", tmp_path, SARATHI))) == []


def test_past_future_evicts_the_fewest_of_all_that_use_as_much_memory(tmp_path: Path) -> None:
    assert disagreements(known_past_future(composed("known_past_future", tmp_path, PAST_FUTURE))) == []


def test_mlfq_and_srpt_lower_the_mean_latency_of_heavy_tailed_outputs(tmp_path: Path) -> None:
    assert disagreements(known_shortest_first(composed("known_shortest_first", tmp_path, SHORTEST_FIRST))) == []


def test_the_longest_cached_prefix_first_finds_nearly_all_that_can_be_found(tmp_path: Path) -> None:
    assert disagreements(known_lpm(composed("known_lpm", tmp_path, LPM))) == []


# -- how it is measured ------------------------------------------------------------------------------------------------


def record(request_id: str, client_id: str, arrival_s: float, first_s: float, tokens_s: list[float]) -> RequestRecord:
    return RequestRecord(
        request_id, arrival_s, first_s, tokens_s[-1], tuple(tokens_s), "stop", 10, len(tokens_s), 0, 0, 0, client_id,
        "", None, None,
    )  # fmt: skip


def test_service_is_prompts_when_they_start_and_tokens_when_they_are_there_until_the_last_arrival() -> None:
    records = [
        record("a0", "a", 0.0, 1.0, [2.0, 3.0]),
        record("b0", "b", 0.0, 2.0, [4.0]),
        record("b1", "b", 5.0, 6.0, [7.0]),
    ]
    service = Service.of(RequestColumns.of(records), Question(prompt_weight=1, output_weight=2, window_s=1))
    assert service.clients == ("a", "b")
    assert service.times_s.tolist() == [1.0, 2.0, 2.0, 3.0, 4.0]
    assert service.gap.tolist() == [-10.0, 0.0, -2.0, -4.0, -2.0]
    assert service.gap_at(3.5) == -3.0


@pytest.mark.parametrize("limit", [0.07, 1.0, 3.1, 4.0, 900.0])
def test_capacity_is_found_from_below_wherever_it_lies(limit: float) -> None:
    tried: list[float] = []

    def meets(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    found = capacity(meets, 2, 0.05)
    assert limit / 1.051 <= found <= limit
    assert len(tried) == len(set(tried))


def test_a_target_that_every_rate_or_none_meets_is_refused() -> None:
    with pytest.raises(InputError, match=r"question\.tbt_s.*no rate"):
        capacity(lambda rate: False, 2, 0.05)
    with pytest.raises(InputError, match=r"question\.tbt_s.*even"):
        capacity(lambda rate: True, 2, 0.05)


# -- what is said and left ---------------------------------------------------------------------------------------------


def made_up(*claims: Claim) -> KnownResult:
    table = [{"order": "first", "figure": 0.01234, "many": 12345.6}, {"order": "b", "figure": math.nan, "many": 2}]
    chart = Chart("toy", "A chart", "Nothing.", [Panel("A panel", lambda axes: axes.plot([0, 1]))], {})
    return KnownResult("toy", "A <title>", "A paper", "a setting", table, claims, chart)


def test_a_verdict_says_what_the_paper_says_what_came_out_and_why_they_differ() -> None:
    result = made_up(Claim("it rains", "it does", True), Claim("it pours", "it does not", False, "of the season"))
    text = "\n".join(result.lines())
    assert "paper: it rains\nhere:  it does\n       agrees\n" in text
    assert "does not agree: of the season" in text
    assert "order  figure    many\nfirst  0.0123  12,346\nb           -    2.00" in text


def test_a_result_leaves_a_page_figures_and_json_and_the_same_bytes_each_time() -> None:
    files = made_up(Claim("it rains", "it does", True)).files()
    assert set(files) == {"figures/toy.png", "figures/toy.pdf", "index.html", "toy.txt", "toy.json"}
    assert files == made_up(Claim("it rains", "it does", True)).files()
    content = json.loads(files["toy.json"])
    assert content["table"][1] == {"order": "b", "figure": None, "many": 2}
    assert b"A &lt;title&gt;" in files["index.html"]


def test_it_is_written_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell(made_up(Claim("it rains", "it does", True)), composed("known_lpm", tmp_path, []))
    assert f"results: {tmp_path / 'toy' / 'index.html'}" in capsys.readouterr().out
    assert (tmp_path / "toy" / "figures" / "toy.png").stat().st_size > 1000


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "overrides", "named"),
    [
        (known_vtc, ["question.output_weight=-1"], r"question\.output_weight=-1"),
        (known_vtc, ["workload.classes.fast.client_id=1.5 requests/s", "workload.num_requests=9"], r"two clients"),
        (known_sarathi, ["question.precision=0"], r"question\.precision=0"),
        (known_sarathi, ["question.chunk_budget=many"], r"question\.chunk_budget=many"),
        (known_past_future, ["question.settings.ratio=3"], r"question\.settings\.ratio=3"),
        (known_past_future, ["question.warm_up=1"], r"question\.warm_up=1"),
        (known_shortest_first, ["question.rates=[]"], r"question\.rates=\[\]"),
        (known_shortest_first, ["question.sigmas=[-1]"], r"question\.sigmas=-1"),
        (known_lpm, ["question.num_blocks=[0]"], r"question\.num_blocks"),
        (known_lpm, ["question.num_blocks=[2000]", "workload.num_requests=5", "workload.prefixes=null"], "begins like"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(
    make: Callable[[Composed], KnownResult], overrides: list[str], named: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=named):
        make(composed(make.__name__, tmp_path, overrides))


def test_known_results_are_simulated_only(tmp_path: Path) -> None:
    asked = composed("known_lpm", tmp_path, [])
    with pytest.raises(InputError, match="mode=real"):
        known_lpm(Composed(asked.config, {**asked.choices, "mode": "real"}, []))
