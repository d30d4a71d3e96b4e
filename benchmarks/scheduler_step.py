"""What a step costs in the scheduler alone: schedule() + update_from_output(), with N requests decoding and W waiting.

    python -m benchmarks.scheduler_step
    python -m benchmarks.scheduler_step --peer PYTHON SCRIPT MODEL

Prompts of 256 tokens, outputs of 64, prefix caching on with real token ids (so blocks are hashed as they fill), and a
budget that never binds: the shapes of vLLM's scheduler under the script given with --peer, which must print lines like
`RESULT vllm 256 0 (2085.1, 50, 63)`, the first number being microseconds. Both run in turns, so that a machine that
drifts drifts for both; medians over the turns are compared.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import time

from schedulers import ChunkedPrefill, Limits, Priority, Request, Scheduler, StepResult

PROMPT_TOKENS, OUTPUT_TOKENS, BLOCK_SIZE = 256, 64, 16
NUM_STEPS = 50
#: (label, policy, requests decoding, requests waiting)
SHAPES: tuple[tuple[str, type[Scheduler], int, int], ...] = (
    ("1", ChunkedPrefill, 1, 0),
    ("32", ChunkedPrefill, 32, 0),
    ("256", ChunkedPrefill, 256, 0),
    ("256, 10,000 waiting", ChunkedPrefill, 256, 10_000),
    ("1,024", ChunkedPrefill, 1024, 0),
    ("256, 10,000 waiting, priority", Priority, 256, 10_000),
)


def step_us(policy: type[Scheduler], num_decoding: int, num_waiting: int) -> float:
    """Median microseconds of a step in which all slots decode."""
    blocks = num_decoding * ((PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE + 4) + 64
    scheduler = policy(Limits(max(8192, num_decoding), num_decoding, blocks, BLOCK_SIZE, 8192))
    for number in range(num_decoding + num_waiting):
        prompt = [number % 30_000 + position for position in range(PROMPT_TOKENS)]
        priority = number % 3 if policy is Priority else 0
        request = Request(
            str(number), float(number), prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, priority=priority
        )
        scheduler.add_request(request)
    times: list[float] = []
    while len(times) < NUM_STEPS:
        start = time.perf_counter()
        output = scheduler.schedule(0.0)
        spent = time.perf_counter() - start
        if not output.num_scheduled_tokens:
            break
        result = StepResult({request_id: [7] for request_id in output.sampled_ids})
        start = time.perf_counter()
        scheduler.update_from_output(output, result, 0.0)
        spent += time.perf_counter() - start
        if len(output.shape.decode_contexts) == num_decoding and not output.shape.prefills:
            times.append(spent)
    return statistics.median(times) * 1e6


def peer_us(command: list[str]) -> list[float]:
    """The peer's figures, in the order of SHAPES."""
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    results = [line for line in printed.splitlines() if line.startswith("RESULT")]
    if len(results) != len(SHAPES):
        raise SystemExit(
            f"{' '.join(command)} printed {len(results)} RESULT lines; {len(SHAPES)} were expected:\n{printed}"
        )
    return [float(ast.literal_eval(line[line.index("(") :])[0]) for line in results]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--peer", nargs=3, metavar=("PYTHON", "SCRIPT", "MODEL"), help="measure vLLM's scheduler in turns with ours"
    )
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    for _ in range(arguments.turns):
        ours.append([step_us(policy, decoding, waiting) for _, policy, decoding, waiting in SHAPES])
        if arguments.peer:
            theirs.append(peer_us(arguments.peer))
    print(f"microseconds a step, medians of {arguments.turns} turns")
    print(f"{'requests decoding':<32}{'twinserve':>12}" + (f"{'vLLM':>12}{'ratio':>8}" if theirs else ""))
    for index, (label, *_rest) in enumerate(SHAPES):
        own = statistics.median(turn[index] for turn in ours)
        line = f"{label:<32}{own:>12,.0f}"
        if theirs:
            peer = statistics.median(turn[index] for turn in theirs)
            line += f"{peer:>12,.0f}{peer / own:>7.1f}x"
        print(line)


if __name__ == "__main__":
    main()
