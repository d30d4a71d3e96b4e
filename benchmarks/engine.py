"""Tokens a second of the real engine: bf16 SmolLM2-135M on this CPU, 128 random tokens in, 64 out, greedy.

    python -m benchmarks.engine
    python -m benchmarks.engine --peer PYTHON SCRIPT MODEL

--peer runs vLLM for CPUs by a script that prints lines like `vllm batch=8 repeat=0 output_tok_per_s=340.1`, in turns
with ours, once as installed and once bound to all cores; its better median at each size counts. Prefill is included.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import time

BATCHES = (1, 8, 32)
PROMPT_TOKENS, OUTPUT_TOKENS, REPEATS = 128, 64, 3

Figures = dict[int, list[float]]


def ours() -> Figures:
    """Output tokens a second at each batch size, in a fresh engine with its core in a process of its own."""
    from real import LLM, SamplingParams

    draws = random.Random(0)
    figures: Figures = {batch: [] for batch in BATCHES}
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0)
    with LLM(dtype="bfloat16", num_blocks=1024, max_num_seqs=64, prefix_caching=False) as llm:
        for _ in range(REPEATS):
            for batch in BATCHES:
                prompts = [[draws.randrange(100, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
                start = time.perf_counter()
                llm.generate(prompts, params, progress=False)
                figures[batch].append(OUTPUT_TOKENS * batch / (time.perf_counter() - start))
    return figures


def theirs(command: list[str], bind: str | None) -> Figures:
    """What the peer's script printed."""
    environment = {**os.environ, **({"VLLM_CPU_OMP_THREADS_BIND": bind} if bind else {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: Figures = {batch: [] for batch in BATCHES}
    for batch, rate in re.findall(r"batch=(\d+) repeat=\d+ output_tok_per_s=([\d.]+)", done.stdout):
        figures[int(batch)].append(float(rate))
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", nargs=3, metavar=("PYTHON", "SCRIPT", "MODEL"))
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    own: Figures = {batch: [] for batch in BATCHES}
    peers: list[Figures] = [{batch: [] for batch in BATCHES} for _ in range(2)]
    for _ in range(arguments.turns):
        for batch, rates in ours().items():
            own[batch] += rates
        for peer, bind in zip(peers if arguments.peer else (), (None, f"0-{(os.cpu_count() or 1) - 1}"), strict=False):
            for batch, rates in theirs(arguments.peer, bind).items():
                peer[batch] += rates
    print(f"output tokens/s, medians of {arguments.turns} turns of {REPEATS}")
    print(f"{'batch':>6}{'twinserve':>12}" + (f"{'vLLM':>12}{'ratio':>8}" if arguments.peer else ""))
    for batch in BATCHES:
        line = f"{batch:>6}{statistics.median(own[batch]):>12.1f}"
        if arguments.peer:
            best = max(statistics.median(peer[batch]) for peer in peers)
            line += f"{best:>12.1f}{statistics.median(own[batch]) / best:>8.2f}"
        print(line)


if __name__ == "__main__":
    main()
