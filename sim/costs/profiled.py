"""Prices from measured kernel times, interpolated."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedulers.errors import InputError
from schedulers.step import BatchShape
from sim.costs.after_idle import AfterIdle
from sim.costs.composition import as_one_prefill, collectives, num_distinct_experts
from sim.costs.cost_model import is_time
from sim.costs.interpolation import Extrapolations, Grid
from sim.costs.profile_files import (
    ATTENTION_AXES,
    Curves,
    declared_axis,
    find_table,
    full_grid,
    read_attention,
    read_curves,
    read_meta,
    read_moe,
    tensor_parallel_folder,
)
from sim.costs.skew import SkewFit
from sim.hardware import Device, ModelShape

#: Rows of dense.csv, and how often each is called, in every layer or in all. A decoder layer has one norm before
#: attention and one before its MLP, both under the name `layernorm`; `qk_norm` is there for Qwen3 alone.
_MLP = ("gate_up_proj", "act_fn", "down_proj")
_CALLS_PER_LAYER = dict.fromkeys(("qkv_proj", "qk_norm", "rotary_emb", "o_proj", *_MLP), 1) | {"layernorm": 2}
_ONCE = ("embedding", "final_layernorm")
#: Rows of per_sequence.csv, once a step.
_PER_SEQUENCE = ("lm_head", "sampler")


class Profiled:
    """A profile in the layout of LLMServingSim 2.0 (`sim.costs.profile_files`), of one tensor-parallel degree.

    A step is the sum of measured parts, each interpolated linearly:

    - dense.csv over the tokens of the step. Profiles are taken on a model of one layer: norms, projections and the MLP
      count once for each of the model's `num_layers` (`layernorm` twice), embedding and final norm once;
    - attention.csv, once a layer, over the tokens of the prefill, its context, the number of decodes, and their
      context. Steps with prefills only, decodes only and both were measured apart and are interpolated apart. Several
      prefills are priced as one of equal work (`as_one_prefill`), decodes of uneven context at their mean and a share
      of the way to their greatest, where meta.yaml says that the profile has a skew fit (`sim.costs.skew`);
    - moe.csv, once a layer, in place of the MLP of dense.csv where the model is a mixture of experts: over the tokens
      of the step and the experts that these are expected to use (`num_distinct_experts`), router included;
    - per_sequence.csv (output projection, sampler) over the sequences that sample;
    - `step_overhead_us` of meta.yaml: what the engine spends in a step beside kernels. The key is ours; a profile
      without it, such as the published ones, is priced as if the engine took no time. So is `arrival_us`, the way of a
      request to the engine, which is in no step;
    - after_idle.csv, where the profile has one: what a step takes longer after idling (`sim.costs.after_idle`).

    A profile of tensor-parallel degree N holds the times of one rank's share. The exchanges between the ranks, which it
    does not hold, come from the device's link (`collectives`).

    The attention grid is the one that meta.yaml declares, or all values that occur where it declares none; points
    beside a declared grid, left by an earlier profile, are not used. Against the 10,721 such points of the published
    RTX PRO 6000 profile, interpolated attention is off by 1.3 % in the median and by 9 % in the 90th percentile,
    without bias.

    `extrapolations` maps each axis that a batch went beyond to (how often, the largest value, where the axis ends).
    """

    def __init__(self, *, model: ModelShape, device: Device, tensor_parallel: int = 1, path: str) -> None:
        """Read the profile in folder `path` (DEVICE/MODEL).

        Raises:
            InputError: a folder, file, column, layer or grid point is missing or broken; the message names it.
        """
        folder = Path(path)
        files = tensor_parallel_folder(folder, tensor_parallel)
        meta = read_meta(folder)
        calls = {layer: number * model.num_layers for layer, number in _CALLS_PER_LAYER.items()}
        calls |= dict.fromkeys(_ONCE, 1)
        optional = ("qk_norm", *_MLP) if model.num_experts else ("qk_norm",)
        dense = read_curves(files, "dense", "tokens", [layer for layer in calls if layer not in optional], optional)
        if model.num_experts:
            for layer in _MLP:
                dense.pop(layer, None)
            dense["moe"], calls["moe"] = _experts(files, model), model.num_layers
        per_sequence = read_curves(files, "per_sequence", "sequences", _PER_SEQUENCE)

        self.extrapolations: Extrapolations = {}
        self._dense = _summed(dense, calls, "tokens", self.extrapolations)
        self._per_sequence = _summed(per_sequence, dict.fromkeys(_PER_SEQUENCE, 1), "sequences", self.extrapolations)
        self._attention = _Attention(files, folder, meta, tensor_parallel, self.extrapolations)
        self._after_idle = AfterIdle(files)
        self._num_layers = model.num_layers
        exchange = collectives(model, device, tensor_parallel)
        self._exchange_us_per_token, self._exchange_us_per_sample = 1e6 * exchange.token_s, 1e6 * exchange.sample_s
        self._step_overhead_us = _time_us(meta, "step_overhead_us", folder)
        #: Seconds from a request's arrival until the engine knows of it.
        self.arrival_s = 1e-6 * _time_us(meta, "arrival_us", folder)
        self._constant_us = self._step_overhead_us + 1e6 * exchange.step_s
        self._name = f"profile {folder.parent.name}/{folder.name} tp{tensor_parallel}"
        self._mismatches = [
            f"{self._name} was measured for {measured} and prices {priced} of another name."
            for measured, priced in ((meta.get("model"), model.name), (meta.get("hardware"), device.name))
            if measured is not None and str(measured).rpartition("/")[2].lower() != priced.lower()
        ]

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds of the step."""
        decodes = batch.decode_contexts
        tokens = len(decodes)
        for chunk, _ in batch.prefills:
            tokens += chunk
        time_us = self._constant_us + self._exchange_us_per_token * tokens + self._dense.at(tokens)
        time_us += self._num_layers * self._attention.time_us(batch)
        if batch.num_sampled:
            time_us += self._per_sequence.at(batch.num_sampled) + self._exchange_us_per_sample * batch.num_sampled
        if idle_s:
            time_us += self._after_idle.time_us(tokens, idle_s)
        return time_us * 1e-6

    def warnings(self) -> list[str]:
        """Where batches went beyond the measured grid and how far, and whether the profile is of something else."""
        return self._mismatches + [
            f"{self._name}: {times:,} look-ups were beyond the measured {axis}, which ends at {end:,.0f}; the largest "
            f"had {largest:,.0f}, {largest / end:.1f} times that. They were extrapolated linearly."
            for axis, (times, largest, end) in self.extrapolations.items()
        ]

    def describe(self) -> str:
        """Which profile."""
        uneven = "a skew fit" if self._attention.skew else "no skew fit"
        way = f", {1e6 * self.arrival_s:g} us from a request's arrival to the engine" if self.arrival_s else ""
        return (
            f"{self._name}: measured kernel times, interpolated, with {uneven}; "
            f"{self._step_overhead_us:g} us a step beside them{way}"
        )


class _Attention:
    """Time of one layer's attention, from three grids: prefill only, decodes only, and both."""

    def __init__(
        self,
        files: Path,
        folder: Path,
        meta: Mapping[str, Any],
        tensor_parallel: int,
        extrapolations: Extrapolations,
    ) -> None:
        file, points = read_attention(files)
        meta_file = folder / "meta.yaml"
        declared = _declared_axes(meta, meta_file)
        fit = meta.get("skew_fit") or {}
        #: How uneven decodes are priced; None: at their mean.
        self.skew = (
            SkewFit(find_table(files, "skew_fit"), meta_file, fit, tensor_parallel) if fit.get("enabled") else None
        )

        def grid(has_prefill: bool, has_decodes: bool) -> Grid:
            of_kind = [at for at in points if (at[0] > 0) == has_prefill and (at[2] > 0) == has_decodes]
            present = {name: sorted({at[i] for at in of_kind}) for i, name in enumerate(declared)}
            axes = {name: declared[name] or present[name] for name in declared}
            fixed: dict[str, float] = {}
            if has_prefill:
                axes["prefill_chunk"] = [chunk for chunk in axes["prefill_chunk"] if chunk > 0]
            else:
                fixed |= {"prefill_chunk": 0, "kv_prefill": 0}
            if has_decodes:
                # Beside a prefill, fewer decodes were measured: a step has at most max_num_seqs sequences in all.
                most = present["n_decode"][-1] if present["n_decode"] else 0
                axes["n_decode"] = [number for number in axes["n_decode"] if 0 < number <= most]
                axes["kv_decode"] = [context for context in axes["kv_decode"] if context > 0]
            else:
                fixed |= {"n_decode": 0, "kv_decode": 0}
            axes = {name: values for name, values in axes.items() if name not in fixed}
            if not all(axes.values()):
                kind = f"prefill_chunk {'> 0' if has_prefill else '= 0'} and n_decode {'> 0' if has_decodes else '= 0'}"
                raise InputError(f"{file}: the grid has a hole: there is no row with {kind}")
            values = full_grid(file, ATTENTION_AXES, axes, points, fixed)
            names = {"n_decode": "n_decode beside a prefill"} if has_prefill else {}
            return Grid({names.get(name, name): values for name, values in axes.items()}, values, extrapolations)

        self._prefill = grid(has_prefill=True, has_decodes=False)
        self._decode = grid(has_prefill=False, has_decodes=True)
        self._mixed = grid(has_prefill=True, has_decodes=True)

    def time_us(self, batch: BatchShape) -> float:
        """Microseconds of one layer's attention over the batch."""
        decodes, prefills = batch.decode_contexts, batch.prefills
        if prefills and min(prefills)[0] == 1:  # the last token of a prompt is to attention what a decode is
            decodes = decodes + [context for chunk, context in prefills if chunk == 1]
            prefills = [prefill for prefill in prefills if prefill[0] > 1]
        chunk, context = as_one_prefill(prefills) if prefills else (0.0, 0.0)
        if not decodes:
            return self._prefill.at(chunk, context) if chunk else 0.0
        number = len(decodes)
        mean = sum(decodes) / number
        time_us = self._at(chunk, context, number, mean)
        if self.skew and (greatest := max(decodes)) > mean:
            alpha = self.skew.alpha(chunk, context, decodes, mean, greatest)
            time_us += alpha * (self._at(chunk, context, number, greatest) - time_us)
        return time_us

    def _at(self, chunk: float, context: float, number: int, decode_context: float) -> float:
        if chunk:
            return self._mixed.at(chunk, context, number, decode_context)
        return self._decode.at(number, decode_context)


def _experts(files: Path, model: ModelShape) -> tuple[list[float], list[float]]:
    """The time of one layer's experts over the tokens of a step, at every whole number that was measured between.

    How many experts are used depends on the tokens and is not linear in them, so points between the measured ones are
    interpolated in both, and those beside the table (more experts used than a row of few tokens could) extended.
    """
    rows = {tokens: Grid({"activated_experts": xs}, times, {}) for tokens, (xs, times) in read_moe(files).items()}
    measured = sorted(rows)
    tokens = [float(number) for number in range(round(measured[0]), round(measured[-1]) + 1)]
    times = []
    for number in tokens:
        used = num_distinct_experts(model.num_experts, model.experts_per_token, number)
        near = measured[bisect_right(measured, number) - 1]
        far = measured[bisect_left(measured, number)]
        share = (number - near) / (far - near) if far > near else 0.0
        times.append(rows[near].at(used) + share * (rows[far].at(used) - rows[near].at(used)))
    return tokens, times


def _summed(curves: Curves, calls: Mapping[str, int], axis: str, extrapolations: Extrapolations) -> Grid:
    """One curve of all layers together, each as often as it is called, over all points of any."""
    points = sorted({x for xs, _ in curves.values() for x in xs})
    total = [0.0] * len(points)
    for layer, (xs, times) in curves.items():
        curve = Grid({axis: xs}, times, {})
        total = [sum_us + calls[layer] * curve.at(x) for sum_us, x in zip(total, points, strict=True)]
    return Grid({axis: points}, total, extrapolations)


def _declared_axes(meta: Mapping[str, Any], file: Path) -> dict[str, list[float]]:
    """The axes of meta.yaml's attention_grid; an axis is empty where none is declared."""
    grid = meta.get("attention_grid") or {}
    keys = {"prefill_chunk": "chunks", "kv_prefill": "kv", "n_decode": "n_decode", "kv_decode": "kv"}
    return {axis: declared_axis(grid[key], file) if key in grid else [] for axis, key in keys.items()}


def _time_us(meta: Mapping[str, Any], key: str, folder: Path) -> float:
    value = meta.get(key, 0.0)
    if not is_time(value):
        raise InputError(f"{folder / 'meta.yaml'}: {key} is {value!r}; it must be a finite number of 0 or more")
    return float(value)
