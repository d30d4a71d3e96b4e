"""Prices from first principles: operations and bytes against the peaks of a device."""

from __future__ import annotations

from schedulers.step import BatchShape
from sim.costs.composition import collectives, num_distinct_experts
from sim.hardware import Device, ModelShape, check_tensor_parallel


class Roofline:
    """Each part of a step takes the longer of its operations and its bytes (Williams, Waterman and Patterson, 2009).

    The parts, one after the other: the linear layers, whose weights are read once a step (of a mixture of experts,
    those of the experts that the batch is expected to use: `num_distinct_experts`); the attention of prefills, whose
    operations grow with chunk x (context + half the chunk); the attention of decodes, which reads the KV cache of each;
    the output projection, for sampled rows only; with tensor parallelism, the exchanges between the devices; and the
    device's `step_overhead_s`. Peaks are multiplied by the shares that conf/device says kernels attain. Activations,
    norms, rotary embeddings and launches are left out: it needs no data, and is the least exact. For Llama-3.1-8B on an
    H200 it says 0.85 to 0.90 of what aiconfigurator does (tests/sim/costs/test_aiconfigurator.py).
    """

    def __init__(self, *, model: ModelShape, device: Device, tensor_parallel: int = 1) -> None:
        """Take the shapes.

        Raises:
            InputError: tensor_parallel does not divide the model's heads, or the device's link is not known.
        """
        check_tensor_parallel(model, tensor_parallel)
        self._description = f"roofline of {model.name} on {device.name}, tensor parallel {tensor_parallel}"
        s_per_flop = 1 / (device.peak_flops * device.flops_fraction * tensor_parallel)
        s_per_byte = 1 / (device.memory_bandwidth * device.bandwidth_fraction * tensor_parallel)
        num_linear = model.num_layers * model.num_layer_parameters
        num_expert = model.num_layers * model.num_expert_parameters
        num_active = num_linear - (model.num_experts - model.experts_per_token) * num_expert
        # Two operations, multiply and add, for each weight and token; four for each pair of query and key and each
        # element of a head: two for the score, two for the weighted sum of values.
        self._linear_s_per_token = 2 * num_active * s_per_flop
        self._linear_s = (num_linear - model.num_experts * num_expert) * model.bytes_per_weight * s_per_byte
        self._expert_s = num_expert * model.bytes_per_weight * s_per_byte
        self._experts = model.num_experts, model.experts_per_token
        self._attention_s_per_pair = 4 * model.num_layers * model.attention_size * s_per_flop
        self._kv_s_per_token = model.kv_bytes_per_token * s_per_byte
        self._lm_head_s_per_row = 2 * model.num_lm_head_parameters * s_per_flop
        self._lm_head_s = model.num_lm_head_parameters * model.bytes_per_weight * s_per_byte
        self._collectives = collectives(model, device, tensor_parallel)
        self._step_overhead_s = device.step_overhead_s

    def step_time(self, batch: BatchShape, idle_s: float = 0.0) -> float:
        """Seconds of the step."""
        num_decodes = len(batch.decode_contexts)
        tokens = num_decodes
        pairs = 0.0
        prefill_kv_tokens = 0
        for chunk, context in batch.prefills:
            tokens += chunk
            pairs += chunk * (context + (chunk + 1) / 2)
            prefill_kv_tokens += context + chunk
        decode_kv_tokens = sum(batch.decode_contexts) + num_decodes
        exchange = self._collectives
        time_s = self._step_overhead_s + exchange.step_s + exchange.token_s * tokens
        weights_s = self._linear_s
        if self._expert_s:
            weights_s += self._expert_s * num_distinct_experts(*self._experts, tokens)
        time_s += max(self._linear_s_per_token * tokens, weights_s)
        time_s += max(self._attention_s_per_pair * pairs, self._kv_s_per_token * prefill_kv_tokens)
        time_s += max(self._attention_s_per_pair, self._kv_s_per_token) * decode_kv_tokens
        if batch.num_sampled:
            time_s += max(self._lm_head_s_per_row * batch.num_sampled, self._lm_head_s)
            time_s += exchange.sample_s * batch.num_sampled
        return time_s

    def warnings(self) -> list[str]:
        """None: a formula has no limits to leave."""
        return []

    def describe(self) -> str:
        """Model, device and parallelism."""
        return self._description
