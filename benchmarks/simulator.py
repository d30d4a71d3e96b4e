"""How fast the simulator is: 5,000 requests of a Mooncake-format trace, one replica, all records on.

    python -m benchmarks.simulator PATH/conv5000.jsonl.gz
    python -m benchmarks.simulator PATH/conv5000.jsonl.gz --peer 'COMMAND'

Token budget 512, up to 512 sequences, 28,000 blocks of 16, prefix caching on, Llama-3.1-8B on an A100. "All records"
are a step record for every step and a request record with every token's time; with --write the run's folder is written
as well. Each turn is a process of its own, start-up included and reported apart. --peer is a command that prints
`Wall Time (ms): N` for its simulation of the same trace (NVIDIA Dynamo's replay does), run in turns with ours.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Steps and requests per CPU second of Vidur (sarathi scheduler, its loop alone) on these 5,000 requests, seen on a
#: 2-core AMD EPYC (Zen 5) on 2026-11-29.
VIDUR_STEPS, VIDUR_REQUESTS = 5600, 1170


def measure(trace: str, policy: str, cost: str, write: bool) -> dict[str, Any]:
    """Simulate once, in this process, which should be fresh."""
    overrides = [
        f"workload.path={trace}", "workload=mooncake", f"scheduler={policy}", f"cost={cost}", "device=a100",
        "scheduler.token_budget=512", "scheduler.max_num_seqs=512", "engine.num_blocks=28000",
    ]  # fmt: skip
    from hydra import compose, initialize_config_dir

    from experiments.composed import CONF, Composed
    from experiments.config import read_point
    from experiments.run import simulate_point, write_point

    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", overrides)
    point = read_point(Composed(config, {"scheduler": policy}, []))
    start_cpu_s, start_mb = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.process_time()
    outcome = simulate_point(point)
    loop_s = time.process_time() - started
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        if write:
            write_point(point, outcome, Path(folder))
        write_s = time.process_time() - started
    return {
        "start_s": start_cpu_s,
        "start_mb": start_mb,
        "loop_s": loop_s,
        "write_s": write_s,
        "steps": len(outcome.steps),
        "requests": len(outcome.requests),
        "batch": statistics.mean(step.num_running for step in outcome.steps),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--policy", default="chunked_prefill")
    parser.add_argument("--cost", default="roofline")
    parser.add_argument("--write", action="store_true", help="write the run's folder too, and time it")
    parser.add_argument("--peer", help="a command to run in turns with ours")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(measure(arguments.trace, arguments.policy, arguments.cost, arguments.write)))
        return

    turns: list[dict[str, Any]] = []
    peer_s: list[float] = []
    for _ in range(arguments.turns):
        command = [sys.executable, "-m", "benchmarks.simulator", *sys.argv[1:], "--once"]
        turns.append(
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        )
        if arguments.peer:
            printed = subprocess.run(arguments.peer, shell=True, check=True, capture_output=True, text=True).stdout  # noqa: S602
            found = re.search(r"Wall Time \(ms\):\s*([\d.,]+)", printed)
            if not found:
                raise SystemExit(f"{arguments.peer} printed no line 'Wall Time (ms): N'")
            peer_s.append(float(found[1].replace(",", "")) / 1e3)

    def median(key: str) -> float:
        return statistics.median(turn[key] for turn in turns)

    steps, requests, loop_s = turns[0]["steps"], turns[0]["requests"], median("loop_s")
    step_rate, request_rate = steps / loop_s, requests / loop_s
    print(f"{arguments.policy}, cost={arguments.cost}: medians of {arguments.turns} turns, CPU seconds")
    print(f"  {steps:,} steps, {requests:,} requests, {turns[0]['batch']:.1f} running on average")
    print(f"  start-up                  {median('start_s'):10.2f} s, {median('start_mb'):.0f} MB")
    print(f"  simulation                {loop_s:10.2f} s")
    print(f"  steps per CPU second      {step_rate:10,.0f}, {step_rate / VIDUR_STEPS:.1f}x that of Vidur")
    print(f"  requests per CPU second   {request_rate:10,.0f}, {request_rate / VIDUR_REQUESTS:.1f}x that of Vidur")
    if arguments.write:
        print(f"  writing the run's folder  {median('write_s'):10.2f} s")
    print(f"  peak memory               {median('peak_mb'):10.0f} MB")
    if peer_s:
        peer = statistics.median(peer_s)
        print(f"  the peer, same trace      {peer:10.2f} s, {requests / peer:,.0f} requests per second", end="")
        print(f": ours takes {loop_s / peer:.1f}x its time")


if __name__ == "__main__":
    main()
