"""`experiment=sensitivity`: one key at a time is varied around a point; what does it do to latency and goodput?

Keys are any of the configuration, so that what a policy, a predictor or a cost model brings can be varied as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from experiments import storage
from experiments.composed import CONF, Composed
from experiments.config import Point, read_point
from experiments.parallel import make_all, num_jobs, under_each
from experiments.report.study import Estimate
from experiments.workloads import checks
from schedulers import InputError, TwinserveError

#: What is shown: a name, its unit, the factor from a summary's unit to that, and its place in a summary.
METRICS: dict[str, tuple[str, float, tuple[str, str]]] = {
    "TTFT P50": ("s", 1.0, ("ttft_s", "p50")),
    "TTFT P99": ("s", 1.0, ("ttft_s", "p99")),
    "TPOT P50": ("ms", 1e3, ("tpot_s", "p50")),
    "TPOT P99": ("ms", 1e3, ("tpot_s", "p99")),
    "within SLO": ("%", 100.0, ("goodput", "share")),
}

#: Without axes of one's own: what is varied, and by what.
AROUND = {"scheduler.token_budget": "token_budget", "engine.num_blocks": "num_blocks"}
FACTORS = (0.25, 0.5, 2, 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The node `question`; see conf/experiment/sensitivity.yaml for each key."""

    schedulers: list[str]
    axes: dict[str, list[Any]] | None
    seeds: int

    def __post_init__(self) -> None:
        checks.some("question.schedulers", self.schedulers, "[fcfs,chunked_prefill]")
        checks.count("question.seeds", self.seeds)
        if self.axes is None:
            return
        if not isinstance(self.axes, dict) or not self.axes:
            raise InputError(
                f"question.axes={self.axes}: it must name keys and their values, such as "
                "{scheduler.token_budget:[512,2048]}"
            )
        for key, values in self.axes.items():
            checks.some(f"question.axes.{key}", values, "[512,2048]")
            if str(key).split(".")[0] in ("seed", "mode", "question", "results", "ask", "jobs", "path"):
                raise InputError(f"question.axes.{key}: it is the same for all points, and cannot be varied")


@dataclass(frozen=True, slots=True)
class Variant:
    """One point, but for its seed.

    Attributes:
        axis: the key that is varied; its value here is `value`.
        is_base: whether this is the point that is varied around.
    """

    scheduler: str
    axis: str
    value: Any
    is_base: bool
    composed: Composed


@dataclass(frozen=True, slots=True)
class Result:
    """What the runs of a variant came to: by metric the estimate over seeds, None where no run has that figure."""

    variant: Variant
    figures: dict[str, Estimate | None]
    error: str = ""

    @classmethod
    def of(cls, variant: Variant, summaries: Sequence[Mapping[str, Any]], error: str) -> Result:
        """From the summaries of one run a seed, or from why one failed."""
        figures: dict[str, Estimate | None] = {}
        for name, (_, factor, (group, key)) in METRICS.items():
            values = [summary[group][key] for summary in summaries if summary]
            known = [factor * value for value in values if value is not None]
            figures[name] = Estimate.of(known) if known and not error else None
        return cls(variant, figures, error)


def sensitivity(composed: Composed) -> None:
    """Make every variant with every seed; say and write what came of it.

    Raises:
        InputError: the question, or what all points share, is wrong.
        TwinserveError: a variant failed; the others are reported all the same.
    """
    question, jobs = composed.question(Question), num_jobs(composed)
    bases = under_each(composed, question.schedulers)
    variants = [
        variant for label, base in bases.items() for variant in variants_of(label, base, axes_of(question, base))
    ]
    point = read_point(variants[0].composed)
    points = [
        variant.composed.with_values({"seed": variant.composed.config.seed + seed})
        for variant in variants
        for seed in range(question.seeds)
    ]
    print(f"{len(variants)} variants, {question.seeds} seeds each, priced by {point.timing}")
    print("Ctrl-C keeps what is finished; the same command goes on from there", flush=True)
    made = make_all(points, jobs)
    results = []
    for number, variant in enumerate(variants, start=1):
        runs = [next(made) for _ in range(question.seeds)]
        error = next((run.error for run in runs if run.error), "")
        results.append(Result.of(variant, [run.summary for run in runs], error))
        done = "FAILED" if error else "done"
        print(f"[{number}/{len(variants)}] {variant.scheduler} {told_value(variant)}: {done}", flush=True)
    lines = told(results)
    print("\n".join(lines))
    folder = Path(composed.config.results) / "sensitivity"
    write(folder, point, results, lines, question.seeds)
    print(f"results: {folder / 'report.html'}")
    if failed := [f"{result.variant.scheduler} {told_value(result.variant)}: {result.error}" for result in results
                  if result.error]:  # fmt: skip
        raise TwinserveError("; ".join(failed))


def axes_of(question: Question, base: Composed) -> dict[str, list[Any]]:
    """What is varied around a point, and the values besides its own."""
    if question.axes is not None:
        return question.axes
    limits = read_point(base).limits
    return {
        key: [max(1, math.floor(factor * getattr(limits, name))) for factor in FACTORS] for key, name in AROUND.items()
    }


def variants_of(label: str, base: Composed, axes: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """The point itself and all others, axis by axis, numbers in ascending order."""
    variants = []
    for axis, values in axes.items():
        own = value_at(base, axis)
        points = [Variant(label, axis, own, is_base=True, composed=base)]
        others = [value for value in dict.fromkeys(map(_hashable, values)) if value != own]
        points += [Variant(label, axis, value, is_base=False, composed=varied(base, axis, value)) for value in others]
        if all(is_number(variant.value) for variant in points):
            points.sort(key=lambda variant: variant.value)
        variants += points
    return variants


def value_at(base: Composed, axis: str) -> Any:
    """What a key is at the point that is varied around; the number of blocks is computed where it is not given."""
    from omegaconf import OmegaConf

    if axis in base.choices:
        return base.choices[axis]
    value = OmegaConf.select(base.config, axis)
    if value is None and axis in AROUND:
        return getattr(read_point(base).limits, AROUND[axis])
    return _hashable(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value)


def varied(base: Composed, axis: str, value: Any) -> Composed:
    """The point with another value of a key, or another file of a group.

    Raises:
        InputError: the group has no such file.
    """
    if axis == "scheduler":
        raise InputError("question.axes.scheduler: name the policies in question.schedulers")
    if axis not in base.choices:
        return base.with_values({axis: value})
    if not (CONF / axis / f"{value}.yaml").is_file():
        known = ", ".join(sorted(file.stem for file in (CONF / axis).glob("*.yaml")))
        raise InputError(f"question.axes.{axis}: there is no {axis} {value!r}; there are {known}")
    return base.with_choice(axis, str(value))


def is_number(value: Any) -> bool:
    """Whether a value has a place on an axis of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def told_value(variant: Variant) -> str:
    """Which variant it is."""
    return f"{variant.axis}={variant.value}{' (the point itself)' if variant.is_base else ''}"


def told(results: Sequence[Result]) -> list[str]:
    """The figures as a table of text, a block an axis."""
    width = max(len(result.variant.scheduler) for result in results)
    lines: list[str] = []
    for axis in dict.fromkeys(result.variant.axis for result in results):
        here = [result for result in results if result.variant.axis == axis]
        values = [f"{'*' if result.variant.is_base else ' '} {result.variant.value}" for result in here]
        first = max(len(axis), *map(len, values))
        heads = "".join(f"{f'{name} ({METRICS[name][0]})':>20}" for name in METRICS)
        lines += ["", f"{axis:<{first}}  {'scheduler':<{width}}{heads}"]
        for value, result in zip(values, here, strict=True):
            cells = "".join(f"{told_estimate(result.figures[name]):>20}" for name in METRICS)
            lines.append(
                f"{value:<{first}}  {result.variant.scheduler:<{width}}{'  FAILED' if result.error else cells}"
            )
    return [*lines, "* the point itself; +- half of a 95 % confidence interval over seeds (Student's t)"]


def told_estimate(estimate: Estimate | None) -> str:
    """A figure with its uncertainty."""
    if estimate is None:
        return "-"
    return f"{estimate.mean:.3g}" + ("" if estimate.half_width is None else f" +- {estimate.half_width:.2g}")


def write(folder: Path, point: Point, results: Sequence[Result], lines: Sequence[str], num_seeds: int) -> None:
    """sensitivity.json, sensitivity.txt, the figures, and a page with all of it."""
    from experiments.report.charts import chart_files
    from experiments.report.description import RunDescription
    from experiments.report.page import chart_section, description_section, page
    from experiments.report.sensitivities import sensitivity_charts

    charts = sensitivity_charts(results, num_seeds, point.slo)
    facts = {"Workload": point.workload.describe()}
    described = RunDescription(config_yaml=point.config_yaml, cost_model=point.timing, facts=facts)
    sections = [
        "<header><h1>Sensitivity</h1></header>",
        *map(chart_section, charts),
        f"<section><h2>Figures</h2><pre>{escape(chr(10).join(lines).strip())}</pre></section>",
        description_section(described, {}),
    ]
    files: dict[str, bytes] = {}
    for chart in charts:
        files |= chart_files(chart)
    content = [_plain(result) for result in results]
    files |= {
        "report.html": page("Sensitivity", sections),
        "sensitivity.txt": ("\n".join(lines).strip() + "\n").encode(),
        "sensitivity.json": (json.dumps(content, indent=2) + "\n").encode(),
    }
    storage.write_files(folder, files)


def _plain(result: Result) -> dict[str, Any]:
    figures = {
        name: None if estimate is None else {"mean": estimate.mean, "half_width": estimate.half_width}
        for name, estimate in result.figures.items()
    }
    variant = result.variant
    return {
        "scheduler": variant.scheduler,
        "axis": variant.axis,
        "value": variant.value,
        "is_base": variant.is_base,
        "figures": figures,
        "error": result.error,
    }


def _hashable(value: Any) -> Any:
    """A value that can be compared and counted: a node of a config as its text."""
    return value if isinstance(value, int | float | str | None) else json.dumps(value)
