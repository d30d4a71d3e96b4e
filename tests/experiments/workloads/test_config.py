"""Every file in conf/workload builds, and what is wrong with one is said in its own words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from experiments.composed import Composed
from experiments.config import read_point
from experiments.run import simulate_point
from experiments.workloads import (
    AzureTrace,
    BurstGPTTrace,
    LLMServingSimTrace,
    MooncakeTrace,
    Synthetic,
    Trace,
    Workload,
    build,
)
from schedulers.errors import InputError
from schedulers.request import SLO
from tests.shared import shared

CONF = Path(__file__).resolve().parents[3] / "conf"
TRACES: dict[str, type[Trace]] = {
    "azure_code": AzureTrace,
    "azure_conv": AzureTrace,
    "burstgpt": BurstGPTTrace,
    "llmservingsim": LLMServingSimTrace,
    "mooncake": MooncakeTrace,
}
FILES = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,90,9\n2023-11-16 18:00:01,80,5\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens\n1,ChatGPT,9,8\n2,GPT-4,7,6\n",
    "llmservingsim": '{"input_toks": 2, "output_toks": 5, "arrival_time_ns": 1, "input_tok_ids": [7, 8]}\n' * 2,
    "mooncake": '{"timestamp": 1, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}\n' * 2,
    "sharegpt": '[{"conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}]}]',
}
ALL = sorted(path.stem for path in (CONF / "workload").glob("*.yaml"))
OPEN = (
    "azure_like", "bursty", "fixed", "long_outputs", "on_off", "openchat_sharegpt4", "shared_prefixes", "two_classes",
    "two_clients",
)  # fmt: skip


def composed(name: str, *overrides: str) -> Workload:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(overrides=[f"+workload={name}", *overrides])
    return build(config.workload)


@pytest.mark.parametrize("name", ALL)
def test_every_workload_runs_and_is_the_same_for_the_same_seed(name: str, tmp_path: Path) -> None:
    overrides = [f"workload={name}", "cost=roofline", "engine.num_blocks=20000"]
    source = next((content for kind, content in FILES.items() if name.startswith(kind) and name != "azure_like"), None)
    count = "num_sessions" if name in ("sessions", "sharegpt", "heavy_tailed") else "num_requests"
    if source is not None:
        (tmp_path / "file").write_text(source)
        overrides += [f"workload.path={tmp_path / 'file'}", f"workload.{count}=null"]
    else:
        overrides.append(f"workload.{count}=20")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides)
    point = read_point(Composed(config, {"scheduler": "chunked_prefill"}, []))
    requests = point.workload.requests(5)
    assert requests == point.workload.requests(5)
    assert len(simulate_point(point).requests) == len(point.workload.requests(point.seed)) >= 1
    assert point.workload.describe()


def test_a_setting_within_a_part_of_a_mixture_is_named_as_the_command_line_has_it() -> None:
    with pytest.raises(InputError, match=r"^workload\.parts\.chat\.workload\.rate=0: it must be"):
        composed("mixture", "workload.parts.chat.workload.rate=0")
    with pytest.raises(InputError, match=r"^workload\.parts\.chat\.workload\.arrivals\.cv=0: it must be"):
        composed(
            "mixture", "workload.parts.chat.workload.arrivals._target_=experiments.workloads.Gamma",
            "+workload.parts.chat.workload.arrivals.cv=0",
        )  # fmt: skip
    with pytest.raises(InputError, match=r"^workload\.parts\.agents\.workload\.think_s=-1: it must be"):
        composed("mixture", "workload.parts.agents.workload.think_s=-1")


@pytest.mark.parametrize("name", OPEN)
def test_an_open_loop_takes_a_rate_and_a_number(name: str) -> None:
    workload = composed(name, "workload.num_requests=50", "workload.rate=2", "workload.max_tokens=100")
    assert isinstance(workload, Synthetic)
    assert workload.max_tokens == 100
    assert workload.too_long == "error"
    assert len(workload.requests(0)) == 50
    assert workload.describe().startswith("50 requests at 2/s")


@pytest.mark.parametrize("name", [*TRACES, "sharegpt"])
def test_a_trace_without_its_file_says_which_setting_names_it(name: str) -> None:
    with pytest.raises(InputError, match=r"workload\.path=\.\.\."):
        composed(name)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_takes_its_settings(name: str) -> None:
    workload = composed(
        name, "workload.path=file", "workload.rate=3", "workload.num_requests=7", "workload.reseed=true"
    )
    assert isinstance(workload, TRACES[name])
    assert (workload.path, workload.rate, workload.num_requests, workload.reseed) == ("file", 3, 7, True)
    assert composed(name, "workload.path=file", "workload.too_long=drop").too_long == "drop"


def test_the_two_classes_differ_in_urgency_and_targets() -> None:
    requests = composed("two_classes").requests(0)
    kinds = {(r.class_name, r.priority, r.client_id, r.slo) for r in requests}
    assert kinds == {("interactive", 0, "people", SLO(0.5, 0.05)), ("batch", 10, "job", None)}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.rate=0", r"^workload\.rate=0: it must be"),
        ("workload.rate=nan", r"^workload\.rate=nan: it must be"),
        ("workload.rate=fast", r"^workload\.rate=fast: it must be"),
        ("workload.num_requests=1e3", r"^workload\.num_requests=1000\.0: it must be a whole number"),
        ("workload.prompt.num_tokens=0", "num_tokens of fixed lengths=0"),
        ("+workload.burstiness=2", "unexpected keyword argument 'burstiness'"),
        ("+workload.prompt.sigma=2", "unexpected keyword argument 'sigma'"),
        ("workload._target_=experiments.workloads.Nothing", "Nothing"),
    ],
)
def test_a_bad_setting_is_an_input_error_that_names_it(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        composed("fixed", override)


def test_the_default_workload_has_the_lengths_of_the_azure_conversation_trace() -> None:
    trace = AzureTrace(path=str(shared("data/azure/AzureLLMInferenceTrace_conv.csv.gz"))).requests(0)
    workload = composed("azure_like")
    assert isinstance(workload, Synthetic)
    assert workload.rate == pytest.approx(len(trace) / trace[-1].arrival_s, rel=1e-3)
    # The distributions, not a sample of them: where P90 of prompts lies, 50,000 requests still scatter by 3 %.
    evenly = (np.arange(100_000) + 0.5) / 100_000
    for lengths, field in ((workload.prompt, "num_prompt_tokens"), (workload.output, "num_output_tokens")):
        like, real = lengths.tokens(evenly), np.array([getattr(request, field) for request in trace])
        assert like.mean() == pytest.approx(real.mean(), rel=0.01)
        assert np.percentile(like, [50, 90, 99]) == pytest.approx(np.percentile(real, [50, 90, 99]), abs=1)
