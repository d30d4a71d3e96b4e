"""How much longer decodes of uneven context take than even ones: the skew fit of a profile."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schedulers.errors import InputError
from sim.costs.profile_files import read_table

_LABELS = ("n_label", "skew_rate_label", "kv_big_label", "kp_label")


class SkewFit:
    """The shares alpha of a profile's skew_fit.csv, by bucket.

    The authors of LLMServingSim 2.0 measured decode batches of two contexts, some long and the rest short, beside even
    batches at the mean and at the greatest of the contexts, and fitted for each bucket the alpha of

        t = t_mean + alpha * (t_max - t_mean)

    An attention kernel whose time were linear in the context would have alpha = 0. The buckets, whose edges meta.yaml
    gives (`skew_fit.bucket_axes`, each bin open below and closed above), are those of their profiler:

    - pc: tokens of the prefill in the batch, exactly as many as at a point of the profile's grid;
    - n: decodes in the batch;
    - skew_rate: (mean - least) / (greatest - least) of the decode contexts, which for two contexts is the share of the
      long ones;
    - kv_big: the greatest decode context;
    - kp: context of the prefill.

    A batch of no such bucket, as are most with a prefill, whose tokens seldom fall on the grid, has the fit over all
    buckets, `alpha_default`. The nearest grid point would not do in its place: beside a prefill a bucket rests on two
    to eight batches, and the published table has -0.66 for 128 decodes of skew_rate > 70 % up to 4,096 tokens of
    context, and +0.42 beyond.
    """

    def __init__(self, file: Path, meta_file: Path, fit: Mapping[str, Any], tensor_parallel: int) -> None:
        """Read the table for one tensor-parallel degree.

        Raises:
            InputError: the table or what meta.yaml says of it is missing or broken; the message names it.
        """
        axes, default = _declared(meta_file, fit, tensor_parallel)
        self._edges = [edges for edges, _ in axes]
        positions = [{label: position for position, label in enumerate(labels)} for _, labels in axes]
        self._alphas: dict[tuple[float, ...], float] = {}
        for line, (*labels, chunk, alpha) in read_table(file, (*_LABELS, "pc", "alpha"), len(_LABELS), signed=True):
            try:
                bucket = (float(chunk), *(at[str(label)] for at, label in zip(positions, labels, strict=True)))
            except KeyError as error:
                raise InputError(f"{file}, line {line}: {meta_file} has no bucket labelled {error}") from None
            if bucket in self._alphas:
                raise InputError(f"{file}, line {line}: this bucket was given before")
            self._alphas[bucket] = float(alpha)
        self._chunks = {chunk for chunk, *_ in self._alphas}
        self._default = default

    def alpha(self, chunk: float, chunk_context: float, contexts: Sequence[int], mean: float, greatest: int) -> float:
        """The share for these decode contexts, which are not all equal, beside a prefill (or none: 0 tokens)."""
        if chunk not in self._chunks:
            return self._default
        least = min(contexts)
        n, skew_rate, kv_big, kp = self._edges
        bucket = (
            chunk,
            bisect_left(n, len(contexts)),
            bisect_left(skew_rate, (mean - least) / (greatest - least)),
            bisect_left(kv_big, greatest),
            bisect_left(kp, chunk_context),
        )
        return self._alphas.get(bucket, self._default)


def _declared(
    file: Path, fit: Mapping[str, Any], tensor_parallel: int
) -> tuple[list[tuple[list[float], list[str]]], float]:
    """For each axis the inner edges of its bins and their labels, and the share where a bucket was not measured."""
    axes: list[tuple[list[float], list[str]]] = []
    try:
        declared = fit["bucket_axes"]
        for column in _LABELS:
            axis = column.removesuffix("_label")
            bins, labels = declared[f"{axis}_bins"], declared[f"{axis}_labels"]
            if len(bins) != len(labels) + 1 or sorted(bins) != list(bins):
                raise InputError(
                    f"{file}: skew_fit.bucket_axes has {len(bins)} {axis}_bins for {len(labels)} {axis}_labels; there "
                    f"must be one edge more than labels, in ascending order"
                )
            axes.append(([float(edge) for edge in bins[1:-1]], [str(label) for label in labels]))
        of_degree = {str(degree): told for degree, told in fit["per_tp"].items()}
        return axes, float(of_degree[str(tensor_parallel)]["alpha_default"])
    except KeyError as error:
        raise InputError(f"{file}: skew_fit has no {error.args[0]}, and says that it is enabled") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file}: skew_fit cannot be read: {error}") from None
