"""Alternating: prompts in chunks, and decodes, by turns: what chunking is worth without mixing."""

from __future__ import annotations

from schedulers.batch import Batch
from schedulers.chunked_prefill import ChunkedPrefill
from schedulers.scheduler import Limits


class Alternating(ChunkedPrefill):
    """A step of decodes alone, then one of prompt chunks alone, as long as there are both.

    "Chunked-prefills-only" of the ablation in Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with
    Sarathi-Serve", OSDI 2024: no decode waits for more than a chunk, but each chunk reads the model's weights for
    itself. The paper does not say how its steps alternate; here they take turns.

    Args:
        limits: what the engine can hold.
        max_chunk: most prompt tokens of one request in a step; None: the whole budget.
        victim_rule: who makes room for a running request that cannot grow.
        seed: not used.
    """

    def __init__(
        self, limits: Limits, *, max_chunk: int | None = None, victim_rule: str = "last_admitted", seed: int = 0
    ) -> None:
        super().__init__(limits, max_chunk=max_chunk, victim_rule=victim_rule, seed=seed)
        self._decodes_next = True

    def compose(self, batch: Batch, now: float) -> None:
        """The kind whose turn it is; the other, if there is none of it."""
        turns = (self._compose_decodes, self._compose_chunks)
        for compose in turns if self._decodes_next else reversed(turns):
            compose(batch, now)
            if not batch.is_empty:
                break
        self._decodes_next = compose == self._compose_chunks

    def _compose_decodes(self, batch: Batch, now: float) -> None:
        for request in batch.running:
            if request.num_remaining_tokens == 1:
                batch.schedule(request)

    def _compose_chunks(self, batch: Batch, now: float) -> None:
        for request in batch.running:
            if request.num_remaining_tokens > 1:
                batch.schedule(request, self.chunk(request, batch))
        if batch.preempted:
            return
        for request in self.candidates(batch, now):
            if not (self.admit(request, batch) and batch.schedule(request, self.chunk(request, batch))):
                break
