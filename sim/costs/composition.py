"""How a batch is put in the terms of measured tables, and what tensor parallelism adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Collectives:
    """What the devices of a tensor-parallel group take to exchange in a step, in seconds; all 0 for one device."""

    #: In every step, however small: the latencies.
    step_s: float = 0.0
    #: For each token computed, and for each that is sampled.
    token_s: float = 0.0
    sample_s: float = 0.0


def collectives(model: ModelShape, device: Device, tensor_parallel: int) -> Collectives:
    """The exchanges of a step: all-reduces of the hidden state and one all-gather of the logits.

    Activations are summed over the devices after the embedding (its vocabulary is split) and twice a layer, after
    attention and after the MLP; each device has the logits of its share of the vocabulary, and all get all of them.
    Over n devices in a ring an all-gather of S bytes takes n - 1 hops, and (n - 1) / n of S crosses each link; an
    all-reduce takes twice both (Patarasuk and Yuan, 2009). For two RTX PRO 6000, 2 hops of 6.3 us and 36.6 GB/s so give
    12.7 us for 4 KiB, 48.4 us for 1.25 MiB and 586 us for 20 MiB, where LLMServingSim's authors measured 12.7, 47.5 and
    587.

    Raises:
        InputError: tensor_parallel is above 1 and the device's link is not known.
    """
    if tensor_parallel == 1:
        return Collectives()
    if device.link_bandwidth is None:
        raise InputError(
            f"tensor_parallel={tensor_parallel} needs link_bandwidth (bytes/s between devices), which device "
            f"{device.name!r} does not give"
        )
    hops = tensor_parallel - 1
    s_per_byte = hops / tensor_parallel / device.link_bandwidth
    num_sums = 2 * model.num_layers + 1
    return Collectives(
        step_s=(2 * num_sums + 1) * hops * device.link_latency_s,
        token_s=2 * num_sums * model.hidden_size * model.bytes_per_weight * s_per_byte,
        sample_s=model.vocab_size * model.bytes_per_weight * s_per_byte,
    )


def num_distinct_experts(num_experts: int, experts_per_token: int, tokens: float) -> float:
    """How many of a layer's experts a batch is expected to use, each at least once: E (1 - (1 - k / E)^T).

    Each of T tokens chooses k of E experts, all equally likely and independent of the other tokens' choices: it leaves
    a given expert out with probability 1 - k / E. A trained router prefers some experts in some texts, and so uses
    fewer.
    """
    left_out: float = (1 - experts_per_token / num_experts) ** tokens
    return num_experts * (1 - left_out)
