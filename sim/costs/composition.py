"""How a batch is put in the terms of measured tables, and what tensor parallelism adds."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from schedulers.errors import InputError
from sim.hardware import Device, ModelShape


def as_one_prefill(prefills: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """The one prefill (tokens, context tokens) whose attention is as much work as that of all of these together.

    Tables are measured with a single prefill in the batch. Attention over a chunk of c tokens with k tokens of context
    multiplies c * (k + c / 2) pairs of query and key. The one prefill has as many pairs and as many tokens; where
    several short prompts have fewer pairs than one of their joint length, it has as many pairs, no context, and fewer
    tokens. A single prefill is left as it is. What this does not see: each of several small chunks over long contexts
    reads its own KV, so these are priced too low.
    """
    if len(prefills) == 1:
        return prefills[0]
    tokens = 0
    pairs = 0.0
    for chunk, context in prefills:
        tokens += chunk
        pairs += chunk * (context + chunk / 2)
    context_tokens = pairs / tokens - tokens / 2
    if context_tokens < 0:
        return sqrt(2 * pairs), 0.0
    return float(tokens), context_tokens


def all_reduce_s_per_token(model: ModelShape, device: Device, tensor_parallel: int) -> float:
    """Seconds that summing activations over the devices takes for each token of a step: twice a layer.

    A ring moves 2 (n - 1) / n of the data over each link (Patarasuk and Yuan, 2009). Latency is left out, so that small
    steps are priced too low.

    Raises:
        InputError: tensor_parallel is above 1 and the device's link is not known.
    """
    if tensor_parallel == 1:
        return 0.0
    if device.link_bandwidth is None:
        raise InputError(
            f"tensor_parallel={tensor_parallel} needs link_bandwidth (bytes/s between devices), which device "
            f"{device.name!r} does not give"
        )
    bytes_per_token = 2 * model.num_layers * model.hidden_size * model.bytes_per_weight
    return 2 * (tensor_parallel - 1) / tensor_parallel * bytes_per_token / device.link_bandwidth
