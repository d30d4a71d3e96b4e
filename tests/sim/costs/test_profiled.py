"""Prices from a kernel profile: a small one made here, and the published ones."""

from __future__ import annotations

import csv
import gzip
import random
from itertools import pairwise, product
from pathlib import Path

import pytest
import yaml

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.costs import Profiled
from tests.shared import shared
from tests.sim.conf import device, model
from tests.sim.costs.batches import GROWING, batch

LLAMA = model("llama-3.1-8b")
RTX4090 = device("rtx4090")

TOKENS = [1, 16, 64, 256]
CHUNKS, KV, DECODES = [16, 32, 64], [0, 16, 32, 64], [1, 2, 4]
PER_LAYER = ["layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj"]


def _attention(chunk: int, context: int, decodes: int, decode_context: int) -> float:
    return 10 + chunk + chunk * context / 8 + decodes * decode_context / 4


def write_profile(folder: Path) -> Path:
    """A profile in which tokens cost 1 us a layer, heads 1 us a sequence, and attention is multilinear."""
    (folder / "tp1").mkdir(parents=True)
    meta = {"model": "meta-llama/Llama-3.1-8B", "hardware": "RTX4090"}
    (folder / "meta.yaml").write_text(yaml.safe_dump(meta))
    layers = [*PER_LAYER, "embedding", "final_layernorm"]
    dense = [f"{layer},{tokens},{tokens}" for layer in layers for tokens in TOKENS]
    (folder / "tp1/dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]))
    heads = [f"{layer},{sequences},{sequences}" for layer in ("lm_head", "sampler") for sequences in (1, 2, 4)]
    (folder / "tp1/per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *heads]))
    points = [
        *product(CHUNKS, KV, DECODES, KV[1:]), *product(CHUNKS, KV, [0], [0]), *product([0], [0], DECODES, KV[1:]),
    ]  # fmt: skip
    rows = [",".join(map(str, (*at, _attention(*at)))) for at in points]
    (folder / "tp1/attention.csv").write_text("\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "RTX4090" / "Llama-3.1-8B")


def profiled(folder: Path, tensor_parallel: int = 1) -> Profiled:
    return Profiled(model=LLAMA, device=RTX4090, tensor_parallel=tensor_parallel, path=str(folder))


def _expected_us(tokens: int, sequences: int, attention: float) -> float:
    # Seven kinds of rows a layer, the norm twice; embedding and final norm once; output projection and sampler.
    return 32 * 8 * tokens + 2 * tokens + 2 * sequences + 32 * attention


@pytest.mark.parametrize(
    ("step", "attention"),
    [
        (batch((32, 0)), _attention(32, 0, 0, 0)),
        (batch((64, 32)), _attention(64, 32, 0, 0)),
        (batch(decodes=[16]), _attention(0, 0, 1, 16)),
        (batch(decodes=[64, 64]), _attention(0, 0, 2, 64)),
        (batch((16, 64), decodes=[32, 32]), _attention(16, 64, 2, 32)),
        (batch((24, 40), decodes=[20, 40, 45]), _attention(24, 40, 3, 35)),
    ],
)
def test_a_step_is_layers_times_their_rows_and_attention_plus_the_rows_of_the_model(
    folder: Path, step: BatchShape, attention: float
) -> None:
    expected = _expected_us(step.num_tokens, step.num_sampled, attention)
    assert 1e6 * profiled(folder).step_time(step) == pytest.approx(expected)


def test_a_chunk_of_one_token_is_to_attention_what_a_decode_is(folder: Path) -> None:
    cost = profiled(folder)
    assert cost.step_time(batch((1, 32), decodes=[16])) == cost.step_time(batch(decodes=[16, 32]))
    assert cost.step_time(batch((1, 32), (32, 0))) == cost.step_time(batch((32, 0), decodes=[32]))


def test_chunks_that_sample_nothing_do_not_pay_for_output_projection_and_sampler(folder: Path) -> None:
    cost = profiled(folder)
    saved = cost.step_time(BatchShape([(32, 0)], [], 1)) - cost.step_time(BatchShape([(32, 0)], [], 0))
    assert 1e6 * saved == pytest.approx(2)


def test_the_time_between_steps_comes_from_the_profile(folder: Path) -> None:
    without = profiled(folder).step_time(batch((32, 0)))
    with (folder / "meta.yaml").open("a") as meta:
        meta.write("step_overhead_us: 250\n")
    assert profiled(folder).step_time(batch((32, 0))) - without == pytest.approx(250e-6)


def test_so_does_the_way_of_a_request_to_the_engine(folder: Path) -> None:
    assert profiled(folder).arrival_s == 0.0
    with (folder / "meta.yaml").open("a") as meta:
        meta.write("arrival_us: 1500\n")
    assert profiled(folder).arrival_s == pytest.approx(1.5e-3)
    assert (
        profiled(folder)
        .describe()
        .endswith("; 0 us a step beside them, 1500 us from a request's arrival to the engine")
    )


def test_gzipped_files_are_read_as_plain_ones(folder: Path) -> None:
    step = batch((24, 40), decodes=[20, 40, 45])
    plain = profiled(folder).step_time(step)
    for file in (folder / "tp1").glob("*.csv"):
        file.with_suffix(".csv.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()
    assert profiled(folder).step_time(step) == plain


def test_within_the_grid_there_is_nothing_to_warn_of(folder: Path) -> None:
    cost = profiled(folder)
    cost.step_time(batch((64, 64), decodes=[64] * 3))
    assert cost.extrapolations == {}
    assert cost.warnings() == []


def test_steps_beyond_the_grid_are_priced_on_and_reported_with_how_far(folder: Path) -> None:
    cost = profiled(folder)
    steps = [batch((512, 0)), batch((128, 0)), batch(decodes=[256])]
    expected = [_expected_us(512, 1, _attention(512, 0, 0, 0)), _expected_us(128, 1, _attention(128, 0, 0, 0)),
                _expected_us(1, 1, _attention(0, 0, 1, 256))]  # fmt: skip
    assert [1e6 * cost.step_time(step) for step in steps] == pytest.approx(expected)
    assert cost.extrapolations == {"tokens": (1, 512, 256), "prefill_chunk": (2, 512, 64), "kv_decode": (1, 256, 64)}
    warnings = cost.warnings()
    assert len(warnings) == 3
    assert (
        "2 look-ups were beyond the measured prefill_chunk, which ends at 64; the largest had 512, 8.0 times"
        in warnings[1]
    )


def test_a_profile_of_something_else_is_used_with_a_warning(folder: Path) -> None:
    cost = Profiled(model=model("qwen3-8b"), device=device("h200"), path=str(folder))
    assert [("qwen3-8b" in warning, "h200" in warning) for warning in cost.warnings()] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tp1/dense.csv", "o_proj,16,16\n", "o_proj,16,fast\n", r"dense\.csv, line \d+: 'fast' is not a number"),
        ("tp1/dense.csv", "o_proj,16,16\n", "o_proj,16,nan\n", r"dense\.csv, line \d+: 'nan' is not a number"),
        (
            "tp1/dense.csv",
            "o_proj,16,16\n",
            "o_proj,16,-1\n",
            r"dense\.csv, line \d+: '-1' is not a number of 0 or more",
        ),
        ("tp1/dense.csv", "o_proj,16,16\n", "o_proj,16\n", r"dense\.csv, line \d+: 2 values under 3 columns"),
        (
            "tp1/dense.csv",
            "o_proj,16,16\n",
            "o_proj,1,16\n",
            r"dense\.csv, line \d+: o_proj at tokens=1 was given before",
        ),
        ("tp1/dense.csv", "layer,tokens,time_us", "layer,tokens,ms", r"dense\.csv: column time_us is missing"),
        ("tp1/dense.csv", "o_proj", "out_proj", r"dense\.csv: no row for o_proj"),
        ("tp1/dense.csv", "embedding,1,1", "moe,1,1", r"dense\.csv: unknown layer moe"),
        ("tp1/per_sequence.csv", "sampler", "lm_head2", r"per_sequence\.csv: no row for sampler"),
        (
            "tp1/attention.csv",
            "16,0,1,16,",
            "16,0,1,32,",
            r"attention\.csv, line \d+: the point prefill_chunk=16, .* before",
        ),
        ("tp1/attention.csv", "n_decode", "decodes", r"attention\.csv: column n_decode is missing"),
        ("meta.yaml", "hardware", "step_overhead_us: fast\nhardware", r"meta\.yaml: step_overhead_us is 'fast'"),
        (
            "meta.yaml",
            "hardware",
            "step_overhead_us: .inf\nhardware",
            r"meta\.yaml: step_overhead_us is inf; it must be a finite",
        ),
        ("meta.yaml", "hardware", f"arrival_us: {10**400}\nhardware", r"meta\.yaml: arrival_us is 10*; it must be"),
        (
            "meta.yaml",
            "hardware",
            "arrival_us: -1\nhardware",
            r"meta\.yaml: arrival_us is -1; it must be a finite number",
        ),
        (
            "meta.yaml",
            "hardware",
            "attention_grid: {kv: 16 to 64}\nhardware",
            r"meta\.yaml: attention_grid has '16 to 64'",
        ),
        ("meta.yaml", "hardware", "]", r"meta\.yaml is not YAML"),
    ],
)
def test_a_broken_value_is_refused_with_its_file_and_place(
    folder: Path, file: str, old: str, new: str, message: str
) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        profiled(folder)


@pytest.mark.parametrize("file", ["meta.yaml", "tp1/dense.csv", "tp1/per_sequence.csv", "tp1/attention.csv"])
@pytest.mark.parametrize("content", [None, b"", b"\x00\xff\xfe\x80 garbage \x00"])
def test_a_missing_empty_or_binary_file_is_refused_by_name(folder: Path, file: str, content: bytes | None) -> None:
    path = folder / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=path.stem):
        profiled(folder)


@pytest.mark.parametrize("name", ["dense", "per_sequence", "attention"])
def test_a_file_without_rows_or_with_half_its_gzip_is_refused_by_name(folder: Path, name: str) -> None:
    file = folder / f"tp1/{name}.csv"
    text = file.read_bytes()
    file.write_bytes(text.splitlines()[0])
    with pytest.raises(InputError, match=f"{name}.csv has a header and no rows"):
        profiled(folder)
    file.unlink()
    packed = gzip.compress(text, mtime=0)
    file.with_suffix(".csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=rf"{name}\.csv\.gz cannot be read"):
        profiled(folder)


@pytest.mark.parametrize("hole", ["32,16,2,32", "32,16,0,0", "0,0,2,32"])
def test_a_hole_in_the_attention_grid_is_refused_and_named(folder: Path, hole: str) -> None:
    file = folder / "tp1/attention.csv"
    file.write_text("\n".join(line for line in file.read_text().splitlines() if not line.startswith(f"{hole},")))
    named = ", ".join(f"{axis}={x}" for axis, x in zip(
        ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"), hole.split(","), strict=True))  # fmt: skip
    with pytest.raises(
        InputError, match=rf"attention\.csv: the grid has a hole: 1 of \d+ points are missing: {named}$"
    ):
        profiled(folder)


def test_a_whole_missing_chunk_is_a_hole_where_the_grid_is_declared(folder: Path) -> None:
    file = folder / "tp1/attention.csv"
    file.write_text("\n".join(line for line in file.read_text().splitlines() if not line.startswith("64,")))
    profiled(folder)
    with (folder / "meta.yaml").open("a") as meta:
        meta.write('attention_grid: {chunks: "0, 16-64 x2", n_decode: "0, 1-4 x2", kv: "0, 16-64 x2"}\n')
    with pytest.raises(InputError, match=r"prefill_chunk=64, kv_prefill=0, n_decode=0, kv_decode=0; .* and so on"):
        profiled(folder)


@pytest.mark.parametrize("kind", ["16", "0,0", ""])
def test_a_kind_of_step_that_was_not_measured_is_refused(folder: Path, kind: str) -> None:
    file = folder / "tp1/attention.csv"
    header, *rows = file.read_text().splitlines()
    kept = [row for row in rows if not row.startswith("0,")] if kind == "0,0" else [
        row for row in rows if row.startswith("0,") or row.split(",")[2] == ("0" if kind else "1")]  # fmt: skip
    file.write_text("\n".join([header, *kept]))
    with pytest.raises(InputError, match="the grid has a hole"):
        profiled(folder)


def test_an_absent_profile_is_refused_by_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no profile: .*nowhere"):
        profiled(tmp_path / "nowhere")


def test_a_degree_that_was_not_measured_is_refused_and_the_measured_ones_are_named(folder: Path) -> None:
    with pytest.raises(InputError, match="tensor_parallel=4; it has tp1"):
        profiled(folder, tensor_parallel=4)


@pytest.fixture(params=["RTX4090 1", "RTXPRO6000 1", "RTXPRO6000 2"])
def published(request: pytest.FixtureRequest) -> tuple[Profiled, Path]:
    name, degree = request.param.split()
    folder = shared(f"data/vllm_runs/profiles/{name}/Llama-3.1-8B")
    made = Profiled(model=LLAMA, device=device(name.lower()), tensor_parallel=int(degree), path=str(folder))
    return made, folder / f"tp{degree}"


def test_a_published_profile_is_exact_at_its_points_and_between_its_neighbours_elsewhere(
    published: tuple[Profiled, Path],
) -> None:
    cost, files = published
    with gzip.open(files / "attention.csv.gz", "rt") as stream:
        measured = {tuple(map(int, row[:4])): float(row[4]) for row in list(csv.reader(stream))[1:]}
    powers = [2**i for i in range(4, 15)]
    random_ = random.Random(1)
    for _ in range(500):
        low = (
            random_.choice(powers[:7]),
            random_.choice(powers[:10]),
            2 ** random_.randrange(7),
            random_.choice(powers[:10]),
        )
        prefill = [low[:2]]
        exact = cost._attention.time_us(BatchShape(prefill, [low[3]] * low[2]))
        assert exact == pytest.approx(measured[low])
        corners = [measured[at] for at in product(*((x, 2 * x) for x in low))]
        at = [random_.randint(x, 2 * x) for x in low]
        between = cost._attention.time_us(BatchShape([(at[0], at[1])], [at[3]] * at[2]))
        assert min(corners) * (1 - 1e-9) <= between <= max(corners) * (1 + 1e-9)
    assert cost.warnings() == []


def test_points_beside_the_declared_grid_are_met_within_a_few_percent() -> None:
    """The RTX PRO 6000 profile also holds a grid of factor 1.5; it is not used, and so can judge the interpolation."""
    folder = shared("data/vllm_runs/profiles/RTXPRO6000/Llama-3.1-8B")
    cost = Profiled(model=LLAMA, device=device("rtxpro6000"), path=str(folder))
    powers = {0, *(2**i for i in range(15))}
    errors = []
    with gzip.open(folder / "tp1/attention.csv.gz", "rt") as stream:
        for row in list(csv.reader(stream))[1:]:
            chunk, context, decodes, decode_context = map(int, row[:4])
            if chunk and not {chunk, context, decodes, decode_context} <= powers:
                step = BatchShape([(chunk, context)], [decode_context] * decodes)
                errors.append(abs(cost._attention.time_us(step) / float(row[4]) - 1))
    errors.sort()
    assert len(errors) > 10_000
    assert errors[len(errors) // 2] < 0.015
    assert errors[len(errors) * 9 // 10] < 0.09


@pytest.mark.parametrize("steps", GROWING.values(), ids=GROWING)
def test_on_a_published_profile_more_tokens_or_context_cost_no_less_but_for_noise(
    published: tuple[Profiled, Path], steps: list[BatchShape]
) -> None:
    times = [published[0].step_time(step) for step in steps if step.num_tokens]
    assert all(later > 0.98 * earlier for earlier, later in pairwise(times))
    assert times[-1] > times[0]


def test_decode_steps_of_a_published_profile_take_what_vllm_took() -> None:
    """The last seconds of vLLM's run on this device: 16 requests of about 1,430 tokens decode at 790 tokens/s."""
    folder = shared("data/vllm_runs/profiles/RTX4090/Llama-3.1-8B")
    assert profiled(folder).step_time(batch(decodes=[1430] * 16)) == pytest.approx(16 / 790, rel=0.05)
