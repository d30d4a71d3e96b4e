"""The command line, as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.app import choose_custom, main
from tests.experiments.command_line import twinserve


def test_without_arguments_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    for word in ("sched_sweep", "chunked_prefill", "fcfs", "static", "priority", "usage:"):
        assert word in said


def test_help_lists_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for word in ("azure_conv", "llama-3.1-8b", "h200", "profiled", "interactive", "ray_cluster"):
        assert word in said


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("scheduler=fcfz", "did you mean fcfs?"),
        ("experiment=sweep", "There are:"),
        ("workload=azure", "azure_like"),
        ("device=h1000", "did you mean h100?"),
        ("sched_sweep", "did you mean experiment=sched_sweep?"),
        ("nonsense", "arguments are key=value"),
        ("seeed=3", "Key 'seeed'"),
        ("workload.ratee=3", "workload.ratee"),
        ("+zap=3", "unknown key 'zap'"),
        ("scheduler.token_budget=many", "token_budget='many'"),
        ("engine.num_blocks=-5", "engine.num_blocks=-5"),
        ("engine.block_size=0", "block_size"),
        ("scheduler=custom", "scheduler._target_"),
        ("scheduler._target_=nope.Policy", "no module 'nope'"),
        ("scheduler._target_=schedulers.Nope", "it has"),
        ("scheduler._target_=Policy", "package.module.Class"),
        ("+scheduler.alpha=3", "of its own it takes max_chunk"),
        ("workload.rate=0", "workload.rate=0"),
        ("workload.rate=-3", "workload.rate=-3"),
        ("workload=azure_conv", "workload.path"),
        ("cost=profiled", "cost.path"),
        ("experiment=plot", "path=FOLDER"),
        ("engine.max_model_len=100", "too_long=drop"),
        ("engine.num_blocks=10", "exceed the whole KV cache"),
        ("seed=word", "seed"),
        ("seed=-1", "seed"),
        ("scheduler.token_budget=[", "scheduler.token_budget"),
        ("engine.prefix_caching=maybe", "engine.prefix_caching=maybe: it must be true or false"),
        ("slo.ttft_s=-1", "slo.ttft_s=-1"),
        ("slo.ttft_s=true", "slo.ttft_s=True"),
        ("scheduler.max_chunk=abc", "max_chunk='abc'"),
        ("workload.rate=1e-300", "workload.rate=1e-300: it must be at least"),
        ("ask=foo", "ask=foo: there is no such function"),
        ("experiment=choice(run,plot)", "Sweep parameters"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(argument: str, expected: str, tmp_path: Path) -> None:
    short = "slo=interactive" if "azure" in argument else "workload.num_requests=20"
    done = twinserve(short, argument, f"results={tmp_path / 'results'}")
    assert done.returncode in (1, 2)
    assert expected in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_policy_named_by_its_import_path_does_not_inherit_parameters_of_another() -> None:
    assert choose_custom(["scheduler._target_=my.Policy"])[0] == "scheduler=custom"
    assert choose_custom(["scheduler=fcfs", "scheduler._target_=my.Policy"])[0] == "scheduler=fcfs"
