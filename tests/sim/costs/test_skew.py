"""Decodes of uneven context, with made-up fits and the published one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.costs import Profiled
from tests.shared import shared
from tests.sim.conf import device, model
from tests.sim.costs.batches import batch
from tests.sim.costs.test_profiled import profiled, write_profile

AXES = {
    "n_bins": [0, 2, 1000], "n_labels": ["n<=2", "n>2"],
    "skew_rate_bins": [-0.01, 0.4, 1.01], "skew_rate_labels": ["even", "uneven"],
    "kv_big_bins": [0, 32, 1000], "kv_big_labels": ["short", "long"],
    "kp_bins": [-1, 0, 1000], "kp_labels": ["kp=0", "kp>0"],
}  # fmt: skip
HEADER = "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples"
ROWS = ["0,n<=2,uneven,short,kp=0,0.5,4", "0,n>2,even,long,kp=0,-0.25,4", "16,n<=2,uneven,short,kp>0,1,4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_profile(tmp_path / "RTX4090" / "Llama-3.1-8B")
    (made / "tp1/skew_fit.csv").write_text("\n".join([HEADER, *ROWS]))
    declare(made, enabled=True, bucket_axes=AXES, per_tp={1: {"alpha_default": 0.125}})
    return made


def declare(folder: Path, **fit: object) -> None:
    meta = yaml.safe_load((folder / "meta.yaml").read_text())
    (folder / "meta.yaml").write_text(yaml.safe_dump({**meta, "skew_fit": fit}))


# Attention of the made-up profile takes 10 us and a quarter of a microsecond for each decode and token of its context,
# so that a step at the greatest context takes (greatest - mean) * number / 4 more, in each of 32 layers.
@pytest.mark.parametrize(
    ("step", "alpha", "gap"),
    [
        (batch(decodes=[16, 32]), 0.5, (32 - 24) * 2 / 4),  # skew_rate 0.5 of contexts up to 32
        (batch(decodes=[16, 16, 16, 64]), -0.25, (64 - 28) * 4 / 4),  # skew_rate 0.25
        (batch(decodes=[16, 64]), 0.125, (64 - 40) * 2 / 4),  # not measured: no row for n<=2 with long contexts
        (batch((16, 32), decodes=[16, 32]), 1.0, (32 - 24) * 2 / 4),
        (batch((16, 0), decodes=[16, 32]), 0.125, (32 - 24) * 2 / 4),  # a prefill without context was not measured
        (batch((20, 32), decodes=[16, 32]), 0.125, (32 - 24) * 2 / 4),  # nor one of 20 tokens
        (batch(decodes=[32, 32]), 0.0, 0.0),
        (batch(decodes=[32]), 0.0, 0.0),
        (batch((16, 32)), 0.0, 0.0),
    ],
)
def test_uneven_decodes_go_the_share_of_their_bucket_from_mean_to_greatest(
    folder: Path, step: BatchShape, alpha: float, gap: float
) -> None:
    corrected = profiled(folder).step_time(step)
    declare(folder, enabled=False)
    assert 1e6 * (corrected - profiled(folder).step_time(step)) == pytest.approx(32 * alpha * gap)


def test_a_profile_tells_whether_its_fit_is_applied(folder: Path) -> None:
    assert "with a skew fit" in profiled(folder).describe()
    declare(folder, enabled=False)
    assert "with no skew fit" in profiled(folder).describe()


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        ({"enabled": True}, "skew_fit has no bucket_axes"),
        ({"enabled": True, "bucket_axes": AXES, "per_tp": {2: {"alpha_default": 0}}}, "skew_fit has no 1"),
        ({"enabled": True, "bucket_axes": AXES, "per_tp": {1: {}}}, "skew_fit has no alpha_default"),
        ({"enabled": True, "bucket_axes": AXES, "per_tp": [1]}, "skew_fit cannot be read"),
        (
            {"enabled": True, "bucket_axes": {**AXES, "n_bins": [0, 2]}, "per_tp": {1: {"alpha_default": 0}}},
            "2 n_bins for 2 n_labels",
        ),
        (
            {
                "enabled": True,
                "bucket_axes": {**AXES, "kp_labels": ["none", "some"]},
                "per_tp": {1: {"alpha_default": 0}},
            },
            r"skew_fit.csv, line 2: .*meta.yaml has no bucket labelled 'kp=0'",
        ),
    ],
)
def test_a_fit_that_does_not_say_what_its_buckets_are_is_refused(
    folder: Path, fit: dict[str, object], message: str
) -> None:
    declare(folder, **fit)
    with pytest.raises(InputError, match=message):
        profiled(folder)


def test_a_broken_table_is_refused_with_its_line(folder: Path) -> None:
    file = folder / "tp1/skew_fit.csv"
    file.write_text("\n".join([HEADER, *ROWS, ROWS[0]]))
    with pytest.raises(InputError, match=r"skew_fit\.csv, line 5: this bucket was given before"):
        profiled(folder)
    file.write_text("\n".join([HEADER, ROWS[0].replace("0.5", "half")]))
    with pytest.raises(InputError, match=r"skew_fit\.csv, line 2: 'half' is not a number"):
        profiled(folder)
    file.unlink()
    with pytest.raises(InputError, match=r"neither skew_fit\.csv nor skew_fit\.csv\.gz"):
        profiled(folder)


@pytest.mark.parametrize(("tensor_parallel", "fitted", "default"), [(1, 0.1008, 0.0543), (2, None, 0.0654)])
def test_the_published_fit_is_read(tensor_parallel: int, fitted: float | None, default: float) -> None:
    profile = shared("data/vllm_runs/profiles/RTXPRO6000/Llama-3.1-8B")
    cost = Profiled(
        model=model("llama-3.1-8b"), device=device("rtxpro6000"), tensor_parallel=tensor_parallel, path=str(profile)
    )
    skew = cost._attention.skew
    assert skew is not None
    contexts = [100] * 28 + [1000] * 100  # skew_rate 0.78
    if fitted is not None:
        assert skew.alpha(0, 0, contexts, sum(contexts) / 128, 1000) == fitted
    assert skew.alpha(333, 0, contexts, sum(contexts) / 128, 1000) == default
