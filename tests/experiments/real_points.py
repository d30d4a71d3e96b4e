"""Points of real runs that take seconds: a tiny random Llama, on one thread."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

#: What conf/model must say of the tiny model.
SHAPE = {
    "name": "tiny", "num_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2,
    "head_dim": 32, "vocab_size": 199, "max_model_len": 256,
}  # fmt: skip


def tiny_model(folder: Path) -> Path:
    """The folder of a tiny Llama; the test is skipped, saying so, where the real engine is not installed."""
    pytest.importorskip("torch", reason="mode=real needs torch: pip install twinserve[real]")
    pytest.importorskip("zmq", reason="mode=real needs pyzmq: pip install twinserve[real]")
    from tests.real.tiny_model import write_tiny_model

    write_tiny_model(folder)
    return folder


def conversations(path: Path, num_requests: int, seed: int = 0) -> Path:
    """A trace whose prompts begin alike in groups, by blocks of 16 tokens, at 5 ms from one to the next."""
    rng, lines = Random(seed), []
    for number in range(num_requests):
        group, num_shared, num_prompt = rng.randrange(4), rng.randint(0, 3), rng.randint(20, 90)
        num_blocks = -(-num_prompt // 16)
        ids = [100 * group + k if k < num_shared else 10_000 + 100 * number + k for k in range(num_blocks)]
        row = {"timestamp": 5 * number, "input_length": num_prompt, "output_length": rng.randint(1, 40)}
        lines.append(json.dumps({**row, "hash_ids": ids}))
    path.write_text("\n".join(lines) + "\n")
    return path


def workload(trace: Path, results: Path) -> list[str]:
    """The command line of such a point, in either world: a cache so small that requests are preempted."""
    return [
        *(f"model.{key}={value}" for key, value in SHAPE.items()),
        "workload=mooncake", f"workload.path={trace}", "workload.trace_block_size=16", "workload.num_requests=null",
        "engine.num_blocks=24", f"results={results}",
    ]  # fmt: skip


def engine(model: Path) -> list[str]:
    """What makes it real."""
    return ["mode=real", f"mode.weights={model}", "mode.num_threads=1", "mode.dtype=float32", "mode.device=cpu"]
