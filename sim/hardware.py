"""What is served and what serves it: shapes of models, figures of devices, and how many KV blocks fit.

The numbers live in conf/model and conf/device, each with its source; nothing here is tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import NoneType

from schedulers.errors import InputError

#: What a field's annotation takes, and how a message says so.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "a text"),
    "None": ((NoneType,), "null"),
}


def _check_kinds(described: ModelShape | Device) -> None:
    """Refuse a value that is not of its field's kind; a bool is no number."""
    for field in fields(described):
        value = getattr(described, field.name)
        kinds = [_KINDS[kind] for kind in str(field.type).split(" | ")]
        fitting = tuple(fit for types, _ in kinds for fit in types)
        if not isinstance(value, fitting) or (isinstance(value, bool) and bool not in fitting):
            what = "model" if isinstance(described, ModelShape) else "device"
            right = " or ".join(word for _, word in kinds)
            raise InputError(f"{what} {described.name!r}: {field.name}={value!r}; it must be {right}")


@dataclass(frozen=True)
class ModelShape:
    """A decoder with grouped-query attention and gated MLPs (Llama, Qwen), as its config.json describes it.

    Each layer has one MLP, or in a mixture of experts `num_experts`, of which each token passes `experts_per_token`.

    Raises:
        InputError: a value of another kind, a size below one, query heads that the KV heads do not divide, or more
            experts for a token than there are.
    """

    name: str
    #: As in config.json, for example LlamaForCausalLM.
    architecture: str
    num_layers: int
    hidden_size: int
    #: Of the MLP; in a mixture of experts, of one expert (moe_intermediate_size).
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    #: Longest prompt and output together, tokens.
    max_model_len: int
    #: The embedding table also serves as the output projection.
    tied_embeddings: bool = False
    #: 2 for bfloat16.
    bytes_per_weight: int = 2
    bytes_per_kv_element: int = 2
    #: In each layer, and those that a token passes (num_experts_per_tok); 0: the model has none.
    num_experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        _check_kinds(self)
        for field, value in vars(self).items():
            least = 0 if "experts" in field else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise InputError(f"model {self.name!r}: {field}={value}; it must be at least {least}")
        if not min(1, self.num_experts) <= self.experts_per_token <= self.num_experts:
            raise InputError(
                f"model {self.name!r}: experts_per_token={self.experts_per_token}; it must be at least 1 and at most "
                f"num_experts={self.num_experts}, or both 0"
            )
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"model {self.name!r}: num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )

    @property
    def attention_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, which is that of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_expert_parameters(self) -> int:
        """Parameters of one expert of one layer: gate, up and down projection; 0 in a model without experts."""
        return 3 * self.hidden_size * self.intermediate_size if self.num_experts else 0

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of the matrices of one layer.

        Query, key, value and output projection, and those of the MLP: gate, up and down; or those of all experts, and
        the router.
        """
        attention = self.hidden_size * (2 * self.attention_size + 2 * self.kv_size)
        if self.num_experts:
            return attention + self.num_experts * (self.num_expert_parameters + self.hidden_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_lm_head_parameters(self) -> int:
        """Parameters of the projection from hidden state to vocabulary."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All matrices and the norms of the residual stream; biases and per-head norms, below 0.01 %, are left out."""
        embeddings = self.num_lm_head_parameters * (1 if self.tied_embeddings else 2)
        norms = (2 * self.num_layers + 1) * self.hidden_size
        return embeddings + self.num_layers * self.num_layer_parameters + norms

    @property
    def weight_bytes(self) -> int:
        """What the weights take in memory."""
        return self.num_parameters * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        """What one token takes in the KV cache, over all layers."""
        return 2 * self.num_layers * self.kv_size * self.bytes_per_kv_element


@dataclass(frozen=True)
class Device:
    """One accelerator: what its data sheet promises, and which share of that kernels were seen to attain.

    Raises:
        InputError: a value of another kind, a figure that must be positive and is not, or a share outside (0, 1].
    """

    name: str
    #: Memory as the driver reports it.
    memory_bytes: int
    #: Dense bfloat16 operations per second, accumulating in float32.
    peak_flops: float
    #: Memory bandwidth, bytes per second.
    memory_bandwidth: float
    #: Share of peak_flops that large matrix products attain.
    flops_fraction: float
    #: Share of memory_bandwidth that weights and KV cache are read with.
    bandwidth_fraction: float
    #: What the engine spends in a step beside the kernels (scheduling, input preparation, sampling, messages).
    step_overhead_s: float
    #: To the other devices of the machine, one direction, bytes per second; None: not known, so no tensor parallelism.
    link_bandwidth: float | None = None
    #: What a message over that link takes before its bytes count, seconds.
    link_latency_s: float = 0.0
    #: Name of this device in aiconfigurator's tables; None: it has none.
    aiconfigurator_system: str | None = None

    def __post_init__(self) -> None:
        _check_kinds(self)
        for field in ("memory_bytes", "peak_flops", "memory_bandwidth", "flops_fraction", "bandwidth_fraction"):
            value = getattr(self, field)
            if not value > 0 or (field.endswith("_fraction") and value > 1):
                right = "above 0 and at most 1" if field.endswith("_fraction") else "above 0"
                raise InputError(f"device {self.name!r}: {field}={value}; it must be {right}")
        for field in ("step_overhead_s", "link_latency_s"):
            if not getattr(self, field) >= 0:
                raise InputError(f"device {self.name!r}: {field}={getattr(self, field)}; it must be 0 or more")
        if self.link_bandwidth is not None and not self.link_bandwidth > 0:
            raise InputError(f"device {self.name!r}: link_bandwidth={self.link_bandwidth}; it must be above 0, or null")


def check_tensor_parallel(model: ModelShape, tensor_parallel: int) -> None:
    """Refuse a tensor-parallel degree that does not divide the heads of the model evenly.

    Raises:
        InputError: it is below 1, or does not divide num_kv_heads (heads are split, never shared).
    """
    if tensor_parallel < 1 or model.num_kv_heads % tensor_parallel:
        fitting = [n for n in range(1, model.num_kv_heads + 1) if model.num_kv_heads % n == 0]
        raise InputError(
            f"tensor_parallel={tensor_parallel} does not divide the {model.num_kv_heads} KV heads of {model.name}; "
            f"possible: {', '.join(map(str, fitting))}"
        )


def num_kv_blocks(
    model: ModelShape,
    device: Device,
    block_size: int,
    memory_utilization: float = 0.9,
    tensor_parallel: int = 1,
) -> int:
    """Blocks of `block_size` tokens that fit beside the weights into the share of memory an engine may use.

    This is an upper bound: a real engine also holds activations, CUDA graphs and the runtime, 1 to 2 GB together. vLLM
    0.19 found 2,588 blocks of 16 for Llama-3.1-8B on an RTX 4090 at 0.9, where this says 3,178. Runs near saturation
    are sensitive to the number, so give the engine's own where it is known.

    Raises:
        InputError: the weights and one block do not fit, or an argument is out of range.
    """
    if block_size < 1:
        raise InputError(f"block_size={block_size}; it must be at least 1 token")
    if not 0 < memory_utilization <= 1:
        raise InputError(f"memory_utilization={memory_utilization}; it must be above 0 and at most 1")
    check_tensor_parallel(model, tensor_parallel)
    usable_bytes = int(device.memory_bytes * memory_utilization)
    weight_bytes = -(-model.weight_bytes // tensor_parallel)
    block_bytes = block_size * model.kv_bytes_per_token // tensor_parallel
    num_blocks = (usable_bytes - weight_bytes) // block_bytes
    if num_blocks < 1:
        raise InputError(
            f"{model.name} does not fit on {device.name} with tensor_parallel={tensor_parallel}: its weights and one "
            f"KV block need {weight_bytes + block_bytes:,} bytes a device, and memory_utilization={memory_utilization} "
            f"of {device.memory_bytes:,} leaves {usable_bytes:,}"
        )
    return num_blocks
