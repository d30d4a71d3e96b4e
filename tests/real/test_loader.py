"""Models are found, cut and read as asked; what is missing, damaged or foreign is named."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from real.models import load_model, read_architecture
from real.models.checkpoint import Checkpoint, open_checkpoint
from real.models.decoder import Model
from real.models.layers import Source
from real.ops.torch_ops import TorchOps
from real.parallel import Parallel
from schedulers.errors import InputError
from tests.real.tiny_model import logits_in_pieces, reference_logits, some_tokens, write_gguf, write_tiny_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def load(path: Path) -> Model:
    return load_model(str(path), dtype=torch.float32)


def test_a_model_in_several_files_is_read_through_its_index(tmp_path: Path) -> None:
    reference = write_tiny_model(tmp_path, shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = some_tokens(40)
    torch.testing.assert_close(logits_in_pieces(load(tmp_path), tokens, [40]), reference_logits(reference, tokens))


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    reference = write_tiny_model(tmp_path / "folder")
    (tmp_path / "only").mkdir()
    write_gguf(tmp_path / "only" / "model.gguf", reference, "llama")
    assert read_architecture(str(tmp_path / "only")) == read_architecture(str(tmp_path / "only" / "model.gguf"))
    write_gguf(tmp_path / "only" / "other.gguf", reference, "llama")
    with pytest.raises(InputError, match=r"holds 2 GGUF files; name one of them, for example .*model\.gguf"):
        load(tmp_path / "only")


def test_every_eos_token_is_known_and_the_generation_config_comes_first(folder: Path) -> None:
    change_config(folder, eos_token_id=7)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 7, 9]}')
    assert read_architecture(str(folder)).eos_token_ids == (5, 7, 9)


def test_weights_take_the_type_that_is_asked_for(folder: Path) -> None:
    assert load_model(str(folder), dtype=torch.bfloat16).dtype == torch.bfloat16
    assert read_architecture(str(folder)).dtype == "float32"


def test_an_architecture_is_read_without_torch(folder: Path) -> None:
    program = (
        "import sys; from real.models import read_architecture as r; r(sys.argv[1]); print('torch' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, folder], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "False"


class Counting:
    """A checkpoint that counts the numbers that were read from it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.architecture = checkpoint.architecture
        self.numbers = 0

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.shape(name)

    def read(self, name: str, part: range | None = None, dim: int = 0) -> torch.Tensor:
        tensor = self._checkpoint.read(name, part, dim)
        self.numbers += tensor.numel()
        return tensor


def numbers_read(path: Path, parallel: Parallel) -> int:
    checkpoint = Counting(open_checkpoint(str(path)))
    Model(Source(checkpoint, TorchOps(), parallel, torch.float32, torch.device("cpu")))
    return checkpoint.numbers


def test_a_rank_reads_only_its_own_slices(tmp_path: Path) -> None:
    reference = write_tiny_model(tmp_path / "folder")
    write_gguf(tmp_path / "model.gguf", reference, "llama")
    norms = 5 * 64  # every rank needs these whole
    total = sum(parameter.numel() for parameter in reference.parameters())
    for path in (tmp_path / "folder", tmp_path / "model.gguf"):
        assert numbers_read(path, Parallel()) == total
        halves = [numbers_read(path, Parallel(rank, 2)) for rank in range(2)]
        assert sum(halves) == total + norms
        assert abs(halves[0] - halves[1]) <= 2 * 64  # a vocabulary of 199 makes 100 and 99 rows, embedded and projected


@pytest.mark.parametrize(
    ("size", "what"), [(3, "4 attention heads"), (8, "4 attention heads")], ids=["three ranks", "more ranks than heads"]
)
def test_a_model_that_cannot_be_shared_equally_is_refused(folder: Path, size: int, what: str) -> None:
    with pytest.raises(InputError, match=f"{what} cannot be shared equally by {size}"):
        load_model(str(folder), dtype=torch.float32, parallel=Parallel(0, size))


# --- what can be wrong with a model on disk ---------------------------------------------------------------------------


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return damage


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * keep)])

    return damage


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), r"config\.json is missing"),
    "a config that is no JSON": (write("config.json", b'{"hidden_size": '), r"config\.json is not valid JSON"),
    "a config that is not text": (write("config.json", b"\xff\xfe\x00"), r"config\.json is not valid JSON"),
    "a config that is a list": (write("config.json", b"[]"), r"config\.json does not hold a JSON object"),
    "a config without a number": (config(hidden_size=None), r"lacks 'hidden_size'"),
    "a config with text for a number": (config(num_hidden_layers="many"), r"value of the wrong kind: .*'many'"),
    "no weights": (remove("model.safetensors"), r"there are no \*\.safetensors files"),
    "weights cut short": (cut("model.safetensors", 0.7), r"model\.safetensors is damaged"),
    "empty weights": (write("model.safetensors", b""), r"model\.safetensors is damaged"),
    "weights that are something else": (write("model.safetensors", b"<html>" * 100), r"model\.safetensors is damaged"),
    "one layer too many": (config(num_hidden_layers=3), r"none .* holds the tensor 'model\.layers\.2\."),
    "another width": (
        config(intermediate_size=128),
        r"'model\.layers\.0\.mlp\..*' has shape .* config says \(128, 64\)",
    ),
    "another vocabulary": (config(vocab_size=300), r"'model\.embed_tokens\.weight' has shape"),
    "a narrower MLP": (
        config(intermediate_size=64),
        r"mlp\..*' has shape \(96, 64\); its model's config says \(64, 64\)",
    ),
    "fewer heads": (config(num_attention_heads=2), r"q_proj.*' has shape \(128, 64\); .* says \(64, 64\)"),
    "a smaller vocabulary": (config(vocab_size=100), r"embed_tokens\.weight' has shape \(199, 64\)"),
    "heads that make no groups": (config(num_key_value_heads=3), r"num_key_value_heads=3 make no model"),
    "a head of odd size": (config(head_dim=31), r"head_dim=31, .* make no model"),
    "no heads": (config(num_attention_heads=-4), r"num_attention_heads=-4 .* a whole number from 1"),
    "half a layer": (config(num_hidden_layers=1.5), r"num_hidden_layers=1\.5 .* a whole number from 1"),
    "a size beyond all models": (config(vocab_size=10**12), r"vocab_size=1000000000000 "),
    "an infinite size": (config(hidden_size=math.inf), r"value of the wrong kind: .*infinity"),
    "architectures that are a number": (config(architectures=5), r"architecture 5 is not supported"),
    "a RoPE that divides by zero": (
        config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 0}),
        r"value of the wrong kind: float division by zero",
    ),
    "a RoPE of negative base": (
        config(rope_parameters={"rope_type": "default", "rope_theta": -1.0}),
        r"rope_theta=-1 in the model's config: it must be above 0",
    ),
    "a RoPE that is no number": (
        config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1e300}),
        r"the model's RoPE comes to 1e\+300, which is no number to turn by",
    ),
    "a RoPE with text for a factor": (
        config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": "x"}),
        r"value of the wrong kind: .*'x'",
    ),
    "another architecture": (
        config(architectures=["GPT2LMHeadModel"]),
        r"GPT2LMHeadModel is not supported; there are LlamaForCausalLM",
    ),
    "no architecture": (config(architectures=None), r"\(none\) is not supported"),
    "another activation": (config(hidden_act="gelu"), r"hidden_act 'gelu' is not supported"),
    "quantized weights": (config(quantization_config={"quant_method": "gptq"}), r"quantized by gptq are not supported"),
    "another RoPE": (config(rope_parameters={"rope_type": "longrope"}), r"RoPE of type 'longrope' is not supported"),
    "a RoPE without its factor": (config(rope_parameters={"rope_type": "linear"}), r"'linear' needs 'factor'"),
    "a partial RoPE": (config(partial_rotary_factor=0.5), r"partial_rotary_factor"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_or_foreign_folder_is_refused_by_what_is_wrong(folder: Path, fault: str) -> None:
    damage, message = FAULTS[fault]
    damage(folder)
    with pytest.raises(InputError, match=message):
        load(folder)


def test_a_missing_shard_is_refused_by_name_before_any_weight_is_read(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, shard_size="50KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(InputError, match=f"{shard.name} is missing; model.safetensors.index.json says"):
        read_architecture(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensor: tensor[:1], r"down_proj\.weight' has shape \(1, 96\)"),
        (lambda tensor: tensor.flatten(), r"down_proj\.weight' has shape \(6144,\)"),
        (lambda tensor: tensor.to(torch.int64), r"down_proj\.weight' holds torch\.int64, which are no weights"),
    ],
)
def test_a_tensor_of_another_shape_or_kind_is_refused_by_name(folder: Path, change: Any, message: str) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file({**tensors, name: change(tensors[name]).contiguous()}, folder / "model.safetensors")
    with pytest.raises(InputError, match=message):
        load(folder)


def test_an_eos_that_the_vocabulary_does_not_have_never_comes_and_is_left_out(folder: Path) -> None:
    change_config(folder, eos_token_id=[-1, 2, 500])
    (folder / "generation_config.json").unlink(missing_ok=True)
    assert read_architecture(str(folder)).eos_token_ids == (2,)


def test_a_gguf_file_with_damaged_bytes_anywhere_in_its_head_is_refused_or_read(tmp_path: Path) -> None:
    source = random.Random(0)
    write_gguf(tmp_path / "model.gguf", write_tiny_model(tmp_path / "folder"), "llama")
    sound, numbers = (tmp_path / "model.gguf").read_bytes(), [0, 1, 1000, 1 << 31, 1 << 63, (1 << 64) - 1]
    num_refused = 0
    for _ in range(300):
        content, at = bytearray(sound), source.randrange(4, 2500)
        content[at : at + 8] = source.choice(numbers).to_bytes(8, "little")
        (tmp_path / "model.gguf").write_bytes(content)
        try:
            load(tmp_path / "model.gguf")
        except InputError:
            num_refused += 1
    assert num_refused > 100


def test_an_index_without_a_map_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, shard_size="50KB")
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {}}')
    with pytest.raises(InputError, match="there is no 'weight_map' in it"):
        load(tmp_path)


def test_a_place_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no model at nowhere/at-all; give a folder"):
        read_architecture("nowhere/at-all")
    with pytest.raises(InputError, match=r"config\.json is missing"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.02, 0.5, 0.99])
def test_a_gguf_file_cut_short_anywhere_is_refused(tmp_path: Path, keep: float) -> None:
    write_gguf(tmp_path / "model.gguf", write_tiny_model(tmp_path / "folder"), "llama")
    cut("model.gguf", keep)(tmp_path)
    with pytest.raises(InputError, match=r"model\.gguf.*damaged"):
        load(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 and so on, a zip file", r"begins with b'PK\\x03\\x04' instead of b'GGUF'"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), r"version 9 of the format is not supported"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(16), r"\(none\) \(GGUF\) is not supported"),
    ],
    ids=["another format", "another version", "nothing inside"],
)
def test_a_file_that_is_no_usable_gguf_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "model.gguf")


def test_a_gguf_file_of_another_architecture_is_refused_by_its_name(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "falcon")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match=r"falcon \(GGUF\) is not supported"):
        load(tmp_path / "model.gguf")
