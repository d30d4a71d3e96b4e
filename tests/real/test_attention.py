"""Both backends attend as the definition says, to mixed batches of uneven lengths in scattered blocks."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from real.attention import AttentionBackend, AttentionMetadata
from real.attention.native_attention import NativeAttention
from real.attention.torch_attention import TorchAttention
from real.ops.native import load_kernels
from schedulers.errors import InputError

#: (tokens in this step, tokens in the cache afterwards) of each request.
BATCHES = {
    "one decode": [(1, 1)],
    "one long decode": [(1, 700)],
    "one prompt": [(77, 77)],
    "decodes of very uneven lengths": [(1, 3), (1, 700), (1, 16), (1, 17), (1, 255), (1, 256), (1, 257)],
    "chunks over contexts of every kind": [(5, 5), (40, 300), (256, 512), (3, 259), (2, 530)],
    "decodes, a prompt and a chunk": [(1, 40), (1, 9), (1, 311), (90, 90), (64, 321)],
    "a decode after a prompt": [(30, 30), (1, 50)],
}
#: Query heads, key heads, and the dimensions of each.
SHAPES = [(9, 3, 64), (4, 4, 16), (8, 1, 128), (14, 2, 80)]


def attend_by_definition(
    query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], lengths: list[int], scale: float
) -> torch.Tensor:
    rows = []
    for q, k, v in zip(query.split(lengths), keys, values, strict=True):
        share = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(share, 1)) * scale
        seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(k) - len(q))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        rows.append(torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(share, 1)).flatten(1))
    return torch.cat(rows)


def backend_and_type(name: str) -> tuple[AttentionBackend, torch.dtype]:
    if name == "torch":
        return TorchAttention(), torch.float32
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("needs a C++ compiler and a processor with AVX512-BF16")
    return NativeAttention(kernels), torch.bfloat16


@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", ["torch", "native"])
def test_a_batch_is_attended_to_as_the_definition_says(
    name: str, batch: str, shape: tuple[int, int, int], block_size: int
) -> None:
    backend, dtype = backend_and_type(name)
    (heads, kv_heads, dim), random = shape, torch.Generator().manual_seed(0)
    lengths, contexts = map(list, zip(*BATCHES[batch], strict=True))
    blocks = [-(-context // block_size) for context in contexts]
    scattered = torch.randperm(sum(blocks), generator=random).tolist()
    tables = [scattered[end - count : end] for count, end in zip(blocks, accumulate(blocks), strict=True)]

    def draw(count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, dim, generator=random).to(dtype)

    keys, values = ([draw(context, kv_heads) for context in contexts] for _ in range(2))
    query = draw(sum(lengths), heads)
    cache = torch.full(backend.kv_cache_shape(sum(blocks), block_size, kv_heads, dim), torch.nan, dtype=dtype)
    # What was computed before this step is written first, then this step's part.
    before = [context - length for length, context in zip(lengths, contexts, strict=True)]
    if any(before):
        old = [torch.cat([x[:n] for x, n in zip(xs, before, strict=True)]) for xs in (keys, values)]
        backend.write(cache, *old, backend.plan(AttentionMetadata.build(before, before, tables, block_size)))
    plan = backend.plan(AttentionMetadata.build(lengths, contexts, tables, block_size))
    new = [torch.cat([x[n:] for x, n in zip(xs, before, strict=True)]) for xs in (keys, values)]
    backend.write(cache, *new, plan)
    attended = backend.attend(query, cache, plan, dim**-0.5)

    expected = attend_by_definition(
        query.double(), [k.double() for k in keys], [v.double() for v in values], lengths, dim**-0.5
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(attended.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", ["torch", "native"])
def test_very_large_scores_neither_overflow_nor_vanish(name: str) -> None:
    backend, dtype = backend_and_type(name)
    cache = torch.full(backend.kv_cache_shape(40, 16, 1, 16), torch.nan, dtype=dtype)
    key = torch.full((600, 1, 16), -30.0, dtype=dtype)
    key[300] = 30.0
    value = torch.zeros(600, 1, 16, dtype=dtype)
    value[300] = 1.0
    plan = backend.plan(AttentionMetadata.build([600], [600], [list(range(38))], 16))
    backend.write(cache, key, value, plan)
    attended = backend.attend(torch.full((600, 1, 16), 30.0, dtype=dtype), cache, plan, 1.0)
    assert torch.equal(attended[300:], torch.ones(300, 16, dtype=dtype))
    assert torch.equal(attended[:300], torch.zeros(300, 16, dtype=dtype))


def test_the_compiled_cache_refuses_blocks_that_do_not_fill_its_vectors() -> None:
    backend, _ = backend_and_type("native")
    with pytest.raises(InputError, match=r"block_size=8; .* multiple of 16"):
        backend.kv_cache_shape(4, 8, 1, 16)
