"""Made-up records of real runs, as vLLM and LLMServingSim's bench would have left them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from experiments.fidelity import Latencies
from schedulers import ChunkedPrefill, Limits, Request, RequestRecord, StepRecord
from sim.costs import CostModel
from sim.overlapped import simulate_overlapped
from sim.tokens import EOS

#: (arrival, prompt, output): some at once, some alone, more than there are slots.
REQUESTS = [(0.01 * number, 20 + 9 * (number % 7), 3 + 5 * (number % 4)) for number in range(24)]
KWARGS: dict[str, Any] = {
    "tensor_parallel_size": 1, "data_parallel_size": 1, "max_num_seqs": 4, "max_num_batched_tokens": 64,
    "max_model_len": 1024,
}  # fmt: skip


def prompt_ids(number: int, length: int) -> list[int]:
    """Every third prompt begins as the others of its kind do."""
    return [7 if number % 3 == 0 and position < 16 else 100 * number + position for position in range(length)]


def write_prompts(file: Path) -> str:
    """The prompts of all requests, as a workload of LLMServingSim; returns their SHA-256."""
    lines = [
        json.dumps({"input_toks": prompt, "output_toks": output, "input_tok_ids": prompt_ids(number, prompt)})
        for number, (_, prompt, output) in enumerate(REQUESTS)
    ]
    text = "\n".join(lines) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def write_run(folder: Path, cost: CostModel, slower: float = 1.0) -> Path:
    """A run whose times are those that `cost` gives an overlapped engine with KWARGS' limits, `slower` times over."""
    steps: list[StepRecord] = []
    ended: list[RequestRecord] = []
    arrivals = [
        (Request(f"bench-{number}", at, num_prompt_tokens=prompt, max_tokens=output, eos_token_id=EOS), output)
        for number, (at, prompt, output) in enumerate(REQUESTS)
    ]
    limits = Limits(token_budget=64, max_num_seqs=4, num_blocks=99, max_model_len=1024, prefix_caching=False)
    simulate_overlapped(arrivals, ChunkedPrefill(limits), cost, steps.append, ended.append)
    ids = [request.request_id for request, _ in arrivals]
    by_id = {record.request_id: record for record in ended}
    latencies = Latencies.simulated(ids, steps, ended)
    rows = [
        {
            "request_id": name,
            "input_toks": by_id[name].num_prompt_tokens,
            "output_toks": by_id[name].num_output_tokens,
            "arrival_time": 1.7e9 + by_id[name].arrival_s,
            "queued_ts": 500 + slower * latencies.queued_s[i],
            "scheduled_ts": 500 + slower * (by_id[name].first_scheduled_s or 0.0),
            "first_token_ts": 500 + slower * latencies.first_token_s[i],
            "last_token_ts": 500 + slower * latencies.last_token_s[i],
        }
        for i, name in enumerate(ids)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_meta(folder)
    cluster = {"nodes": [{"instances": [{"hardware": "RTX4090"}]}]}
    (folder / "config.json").write_text(json.dumps(cluster))
    (folder / "timeseries.csv").write_text("t,running,waiting\n1.0,3,2\n2.0,1,0\n")
    return folder


def write_meta(folder: Path, kwargs: dict[str, Any] | None = None, **more: Any) -> None:
    """meta.json with these engine arguments besides KWARGS."""
    meta = {
        "model": "meta-llama/Llama-3.1-8B",
        "engine_kwargs": {**KWARGS, **(kwargs or {})},
        "kv_cache": {"num_gpu_blocks": 100, "block_size": 16, "enable_prefix_caching": False},
    }
    (folder / "meta.json").write_text(json.dumps({**meta, **more}))
