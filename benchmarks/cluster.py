"""How long a large cluster takes, and how much memory: many short requests through many engines, written to disk.

    python -m benchmarks.cluster --requests 100000 1000000
    python -m benchmarks.cluster --requests 100000 --replicas 8 --router prefix_affinity

Llama-3.1-8B on H100s priced by the roofline, chunked prefill with a budget of 2,048 tokens, Poisson arrivals at 30
requests a second and engine, prompts of 128 tokens and outputs of 32 on average. Each count of requests is a process of
its own: simulation, records, summary, checks and trace, as `experiment=run` makes them, but not its page.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def measure(num_requests: int, replicas: int, router: str, folder: Path) -> dict[str, Any]:
    """Make one run in this process, which should be fresh."""
    from hydra import compose, initialize_config_dir

    from experiments import storage
    from experiments.composed import CONF, Composed
    from experiments.config import read_point
    from experiments.run import ensure

    def lengths(median_tokens: int) -> dict[str, Any]:
        kind = {"_target_": "experiments.workloads.Lognormal", "sigma": 0.5, "max_tokens": 8 * median_tokens}
        return {**kind, "median_tokens": median_tokens}

    values = {
        "workload.num_requests": num_requests,
        "workload.rate": 30 * replicas,
        "workload.prompt": lengths(113),
        "workload.output": lengths(28),
        "engine.replicas": replicas,
        "results": str(folder),
    }
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", ["workload=fixed", "cost=roofline", f"router={router}"])
    point = read_point(Composed(config, {"scheduler": "chunked_prefill"}, []).with_values(values))
    start_mb = peak_mb()
    started, started_cpu = time.perf_counter(), time.process_time()
    ensure(point)
    summary = storage.read_summary(point.folder)
    return {
        "requests": summary["requests"],
        "steps": summary["steps"],
        "output_tokens": round(summary["throughput"]["output_tokens_per_s"] * summary["makespan_s"]),
        "batch": summary["batch_size"]["mean"],
        "busy": summary["busy_share"],
        "warnings": summary["warnings"],
        "wall_s": time.perf_counter() - started,
        "cpu_s": time.process_time() - started_cpu,
        "start_mb": start_mb,
        "peak_mb": peak_mb(),
        "files_mb": {file.name: file.stat().st_size / 1e6 for file in sorted(point.folder.iterdir())},
    }


def peak_mb() -> float:
    """The most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure each count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[100_000])
    parser.add_argument("--replicas", type=int, default=32)
    parser.add_argument("--router", default="least_outstanding")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for num_requests in arguments.requests:
        if arguments.once:
            with tempfile.TemporaryDirectory() as folder:
                print(json.dumps(measure(num_requests, arguments.replicas, arguments.router, Path(folder))))
            continue
        command = [sys.executable, "-m", "benchmarks.cluster", "--once", "--requests", str(num_requests)]
        command += ["--replicas", str(arguments.replicas), "--router", arguments.router]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        told = json.loads(printed.splitlines()[-1])
        print(f"{told['requests']:,} requests through {arguments.replicas} engines, {arguments.router}")
        print(f"  {told['steps']:,} steps of {told['batch']:.1f} requests, engines busy {told['busy']:.0%} of the time")
        print(f"  wall time               {told['wall_s']:10.1f} s, {told['cpu_s']:.1f} CPU seconds")
        print(f"  requests per CPU second {told['requests'] / told['cpu_s']:10,.0f}")
        print(f"  steps per CPU second    {told['steps'] / told['cpu_s']:10,.0f}")
        print(f"  memory at the start     {told['start_mb']:10.0f} MB, at the peak {told['peak_mb']:.0f} MB")
        sizes = ", ".join(f"{name} {size:.1f} MB" for name, size in told["files_mb"].items() if size >= 0.05)
        print(f"  files                   {sum(told['files_mb'].values()):10.1f} MB: {sizes}", flush=True)
        for warning in told["warnings"]:
            print(f"  warning: {warning}")


if __name__ == "__main__":
    main()
