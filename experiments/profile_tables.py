"""The steps that a profile is measured on, and the tables that are made of their times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments import storage
from schedulers.step import BatchShape
from sim.costs import Profiled
from sim.hardware import Device, ModelShape

if TYPE_CHECKING:
    from real.profiler import PartTimes

#: By file, its rows: the columns' values, the time in microseconds last.
Tables = dict[str, list[tuple[Any, ...]]]

COLUMNS = {
    "dense": "layer,tokens,time_us",
    "per_sequence": "layer,sequences,time_us",
    "attention": "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
    "after_idle": "tokens,idle_ms,time_us",
}

#: A step, as (tokens to compute, context tokens) of each request.
Pieces = tuple[tuple[int, int], ...]

#: Steps of made-up batches, against which the finished profile is checked.
NUM_CHECKS = 40
#: How long the device idles before the steps of after_idle.csv, and the most tokens that these have: the extra time of
#: longer ones, which come to speed on the way, is no longer and would be lost in noise.
IDLE_MS = (50, 100, 200, 500)
MOST_AFTER_IDLE = 256
#: A tile more or less is beyond so many tokens less than 2 % of a step.
TILES_MATTER = 512
#: Rows of dense.csv that hold a measured time, and those whose time is in one of them.
DENSE = ("embedding", "qkv_proj", "gate_up_proj")
UNSEEN = ("layernorm", "rotary_emb", "o_proj", "act_fn", "down_proj", "final_layernorm")
FUSED = {
    "qkv_proj": ["layernorm", "rotary_emb", "o_proj"],
    "gate_up_proj": ["layernorm", "act_fn", "down_proj"],
    "embedding": ["final_layernorm"],
    "sampler": ["scheduling", "input preparation", "messages"],
}


class Plan(NamedTuple):
    """The steps to time.

    Attributes:
        dense: by tokens: as many requests of one token, or of few, without context.
        attention: by a row's place in the grid: one prefill, decodes of one context, or both.
        idling: by tokens and milliseconds of idling: a prompt.
        checks: made-up mixtures.
    """

    dense: dict[int, Pieces]
    attention: dict[tuple[int, int, int, int], Pieces]
    idling: dict[tuple[int, int], Pieces]
    checks: list[Pieces]

    @classmethod
    def of(cls, tokens: int, decodes: int, context: int, seed: int) -> Plan:
        """A grid up to so many tokens, decodes and tokens of context; the more linear times are, the fewer points.

        Attention over a prompt grows with its square, so there are two numbers of its tokens an octave, or one where
        decodes are beside it, whose numbers and contexts then are few. For dense layers there are sixteen, as far as it
        matters: kernels work in tiles, and where a tile begins (every 12 tokens, in a kernel of ours) a step takes up
        to 8 % longer.
        """
        counts = {*range(1, 16), *octaves(16, min(tokens, TILES_MATTER), 16), *octaves(16, tokens, 4)}
        dense = {n: spread(n, decodes) for n in sorted(counts)}
        grid = [(chunk, kv, 0, 0) for chunk in octaves(16, tokens, 2) for kv in [0, *powers(64, context, 4)]]
        grid += [(0, 0, n, kv) for n in powers(1, decodes) for kv in powers(16, context, 4)]
        grid += [
            (chunk, kv, n, kv_decode)
            for chunk in powers(16, tokens)
            for kv in (0, context)
            for n in powers(1, decodes, 8)
            for kv_decode in (16, context)
        ]
        attention = {at: ((at[0:2],) if at[0] else ()) + (((1, at[3]),) * at[2]) for at in grid}
        idling: dict[tuple[int, int], Pieces] = {
            (n, ms): ((n, 0),) for n in powers(16, min(tokens, MOST_AFTER_IDLE)) for ms in IDLE_MS
        }
        draw = random.Random(seed)
        mixtures = []
        for _ in range(NUM_CHECKS):
            pieces = [(1, draw.randint(16, context)) for _ in range(draw.randint(0, decodes))]
            pieces += [(draw.randint(2, tokens // 4), draw.randint(0, context // 2)) for _ in range(draw.randint(0, 3))]
            mixtures.append(tuple(pieces) or ((1, 16),))
        return cls(dense, attention, idling, mixtures)

    def steps(self) -> list[Pieces]:
        """All steps that are timed amid others, each once."""
        return list(dict.fromkeys([*self.dense.values(), *self.attention.values(), *self.checks]))


def tables(
    plan: Plan, times: Mapping[Pieces, PartTimes], after_idle_s: Mapping[tuple[int, int], float], num_layers: int
) -> Tables:
    """The rows of all files but for the sampler's in per_sequence.csv, times in microseconds."""
    halves: dict[str, dict[float, float]] = {name: {} for name in DENSE}
    for tokens, pieces in plan.dense.items():
        part = times[pieces]
        halves["embedding"][tokens] = 1e6 * part.ends
        halves["qkv_proj"][tokens] = 1e6 * part.projections / num_layers
        halves["gate_up_proj"][tokens] = 1e6 * part.mlp_half / num_layers
    attention = [(*at, 1e6 * times[pieces].attention / num_layers) for at, pieces in plan.attention.items()]
    fused = {name: dict.fromkeys(halves["embedding"], 0.0) for name in UNSEEN}
    dense = [(name, x, time_us) for name, curve in (halves | fused).items() for x, time_us in curve.items()]
    logits = [("lm_head", len(pieces), 1e6 * times[pieces].logits) for pieces in plan.dense.values()]
    return {
        "dense": dense,
        "per_sequence": list({row[:2]: row for row in logits}.values()),
        "attention": attention,
        "after_idle": [(*at, max(1e6 * extra_s, 0.0)) for at, extra_s in after_idle_s.items()],
    }


def priced_by(files: Tables, model: ModelShape, device: Device) -> Profiled:
    """The cost model of these tables, the engine's own time left out."""
    with TemporaryDirectory() as folder:
        bare = {**files, "per_sequence": [*files["per_sequence"], ("sampler", 1, 0.0)]}
        storage.write_files(Path(folder) / "profile", encoded(bare, {}))
        return Profiled(model=model, device=device, path=f"{folder}/profile")


def encoded(files: Tables, description: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a profile, meta.yaml last."""
    import yaml

    written = {}
    for name, columns in COLUMNS.items():
        rows = [",".join([*(f"{value}" for value in at), f"{time_us:.3f}"]) for *at, time_us in files[name]]
        written[f"tp1/{name}.csv"] = "\n".join([columns, *rows, ""]).encode()
    return {**written, "meta.yaml": yaml.safe_dump(dict(description), sort_keys=False).encode()}


def shape_of(pieces: Pieces) -> BatchShape:
    """The batch that a made-up step is."""
    prefills = [piece for piece in pieces if piece[0] > 1]
    return BatchShape(prefills, [context for tokens, context in pieces if tokens == 1], len(pieces))


def powers(first: int, last: int, factor: int = 2) -> list[int]:
    """`first`, `factor` times that, and so on, and `last`."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return [*found, last]


def octaves(first: int, last: int, parts: int) -> list[int]:
    """`parts` numbers in each octave from `first`, a power of two, on, and `last`."""
    numbers = [octave * part // parts for octave in powers(first, last)[:-1] for part in range(parts, 2 * parts)]
    return [*(number for number in numbers if number < last), last]


def spread(tokens: int, most: int) -> Pieces:
    """So many tokens without context, over as many requests as there are tokens, or `most`."""
    number = min(tokens, most)
    return tuple((tokens // number + (index < tokens % number), 0) for index in range(number))
