"""Chooses the next token of every request that is due one, by its own rules, in a few operations over the batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from real.input_batch import InputBatch, Longs, lengthened
from real.results import TokenLogprobs
from real.sampling_params import SamplingParams
from real.sampling_rules import argmax, cut, draw, penalize, uniforms

# What a request needs besides the likeliest token, as bits, so that a step sees at once which rules it can skip.
RANDOM, LIMITED, PENALTIES, BIAS, ALLOWED, BAD_WORDS, STOPS, LOGPROBS = (1 << bit for bit in range(8))


class _Columns:
    """Numbers of the requests' parameters, by row of the input batch."""

    def __init__(self) -> None:
        self.needs = np.zeros(8, np.int64)
        self.temperature = np.ones(8, np.float32)
        self.top_k = np.zeros(8, np.int64)
        self.top_p = np.ones(8, np.float32)
        self.min_p = np.zeros(8, np.float32)
        self.presence = np.zeros(8, np.float32)
        self.frequency = np.zeros(8, np.float32)
        self.repetition = np.ones(8, np.float32)
        self.seed = np.zeros(8, np.uint64)
        #: Output tokens that come before EOS or a stop token may.
        self.num_unstopped = np.zeros(8, np.int64)
        #: Output tokens in all, the last of them EOS; 0: as the model says.
        self.forced_length = np.zeros(8, np.int64)

    def fit(self, num_rows: int) -> None:
        """Have at least `num_rows` rows."""
        if num_rows > len(self.needs):
            for name, column in vars(self).items():
                setattr(self, name, lengthened(column, 2 * num_rows))


class Sampler:
    """Samples for a batch; keeps each request's parameters, by its row in the input batch, and nothing that changes.

    Each random choice depends on a request's seed and on its output's length alone, so that the same request gets the
    same tokens in any batch, in any row, and after a preemption.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int], device: torch.device, seed: int = 0) -> None:
        """Start without requests.

        Args:
            vocab_size: of the model.
            eos_token_ids: tokens that end an output; the first ends one of forced length.
            device: where logits are.
            seed: of requests without a seed of their own, together with their ids.
        """
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._device = device
        self._seed = seed
        self._columns = _Columns()
        # What only some requests have, by row: token ids, and a mask over the vocabulary.
        self._stops: dict[int, Tensor] = {}
        self._forbidden: dict[int, Tensor] = {}
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        self._bad_words: dict[int, list[tuple[NDArray[np.int32], Longs]]] = {}
        self._num_logprobs: dict[int, int] = {}

    def add(self, row: int, request_id: str, params: SamplingParams) -> None:
        """Take the parameters of the request that has `row` from now on."""
        columns = self._columns
        columns.fit(row + 1)
        columns.temperature[row] = params.temperature
        columns.top_k[row] = params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size
        columns.top_p[row] = params.top_p
        columns.min_p[row] = params.min_p
        columns.presence[row] = params.presence_penalty
        columns.frequency[row] = params.frequency_penalty
        columns.repetition[row] = params.repetition_penalty
        seed = self._own_seed(request_id) if params.seed is None else params.seed
        columns.seed[row] = seed % (1 << 64)
        forced = columns.forced_length[row] = params.forced_length or 0
        columns.num_unstopped[row] = max(params.min_tokens, int(forced) - 1)
        is_limited = columns.top_k[row] < self._vocab_size or params.top_p < 1 or params.min_p > 0
        needs = 0
        if not params.is_greedy:
            needs |= RANDOM | (LIMITED if is_limited else 0)
        if params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1:
            needs |= PENALTIES
        if params.logit_bias:
            needs |= BIAS
            bias = np.array(list(params.logit_bias.values()), np.float32)
            self._biases[row] = self._ids(list(params.logit_bias)), torch.from_numpy(bias).to(self._device)
        if params.allowed_token_ids is not None:
            needs |= ALLOWED
            forbidden = torch.ones(self._vocab_size, dtype=torch.bool, device=self._device)
            self._forbidden[row] = forbidden.index_fill_(0, self._ids(params.allowed_token_ids), value=False)
        if params.bad_words_token_ids:
            needs |= BAD_WORDS
            self._bad_words[row] = _by_length(params.bad_words_token_ids)
        if forced or params.min_tokens:
            needs |= STOPS
            eos = () if params.ignore_eos else self._eos
            self._stops[row] = self._ids([*eos, *params.stop_token_ids])
        if params.logprobs is not None:
            needs |= LOGPROBS
            self._num_logprobs[row] = params.logprobs
        columns.needs[row] = needs

    def sample(self, logits: Tensor, rows: Longs, batch: InputBatch) -> tuple[Longs, dict[int, TokenLogprobs]]:
        """The next token of the request of each row, and the log-probabilities of those that want them, by index.

        Args:
            logits: float32 [rows, vocab]; used as working memory.
            rows: where the requests are in `batch`.
            batch: their tokens so far.
        """
        needs = self._columns.needs[rows]
        needed = int(np.bitwise_or.reduce(needs))
        if not needed:
            return argmax(logits).cpu().numpy(), {}
        wanting = np.flatnonzero(needs & LOGPROBS)
        raw = None
        if len(wanting):
            raw = self._pick(logits, wanting)
            if raw is logits and needed != LOGPROBS:
                raw = logits.clone()
        num_output = batch.num_tokens[rows] - batch.num_prompt_tokens[rows]
        self._constrain(logits, rows, needs, needed, num_output, batch)
        tokens = self._choose(logits, rows, needs, num_output).cpu().numpy()
        if needed & STOPS:
            forced = self._columns.forced_length[rows]
            is_last = (needs & STOPS > 0) & (forced > 0) & (num_output + 1 >= forced)
            tokens = np.where(is_last, self._eos[0] if self._eos else -1, tokens)
        if raw is None:
            return tokens, {}
        counts = [self._num_logprobs[row] for row in rows[wanting].tolist()]
        found = token_logprobs(raw, tokens[wanting], counts)
        return tokens, dict(zip(wanting.tolist(), found, strict=True))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _constrain(
        self, logits: Tensor, rows: Longs, needs: Longs, needed: int, num_output: Longs, batch: InputBatch
    ) -> None:
        """Apply every rule that shifts or forbids tokens."""
        if needed & ALLOWED:
            for index in _where(needs & ALLOWED):
                logits[index].masked_fill_(self._forbidden[rows[index]], -torch.inf)
        if needed & BAD_WORDS:
            found = [(index, self._ending_bad_words(rows[index], batch)) for index in _where(needs & BAD_WORDS)]
            _forbid(logits, found)
        if needed & STOPS:
            early = (needs & STOPS > 0) & (num_output < self._columns.num_unstopped[rows])
            _forbid(logits, [(index, self._stops[rows[index]]) for index in _where(early)])
        if needed & BIAS:
            for index in _where(needs & BIAS):
                token_ids, bias = self._biases[rows[index]]
                logits[index, token_ids] += bias
        if needed & PENALTIES:
            penalized = np.flatnonzero(needs & PENALTIES)
            picked = self._pick(logits, penalized)
            self._penalize(picked, rows[penalized], batch)
            if picked is not logits:
                logits[self._on_device(penalized)] = picked

    def _penalize(self, logits: Tensor, rows: Longs, batch: InputBatch) -> None:
        columns = self._columns
        starts, ends = batch.num_prompt_tokens[rows], batch.num_tokens[rows]
        places = np.arange(int(ends.max()))
        token_ids = batch.token_ids[rows, : len(places)].astype(np.int64)
        is_known = places < ends[:, None]
        is_output = is_known & (places >= starts[:, None])
        first_output = batch.token_ids[rows, np.minimum(starts, ends - 1)]
        penalize(
            logits,
            self._on_device(np.where(is_known, token_ids, token_ids[:, :1])),
            self._on_device(np.where(is_output, token_ids, first_output[:, None])),
            self._on_device(is_output),
            self._on_device((columns.presence[rows] * (ends > starts))[:, None]),
            self._column(columns.frequency, rows),
            self._column(columns.repetition, rows),
        )

    def _choose(self, logits: Tensor, rows: Longs, needs: Longs, num_output: Longs) -> Tensor:
        """The token of each row: the likeliest, or one drawn."""
        random = np.flatnonzero(needs & RANDOM)
        if not len(random):
            return argmax(logits)
        if len(random) < len(rows):
            tokens = argmax(logits)
            drawn = self._choose(self._pick(logits, random), rows[random], needs[random], num_output[random])
            tokens[self._on_device(random)] = drawn
            return tokens
        columns = self._columns
        probs = logits.div_(self._column(columns.temperature, rows)).softmax(dim=-1)
        limited = np.flatnonzero(needs & LIMITED)
        if len(limited):
            top_k, top_p, min_p = (
                self._column(column, rows[limited]) for column in (columns.top_k, columns.top_p, columns.min_p)
            )
            least = torch.zeros(len(rows), 1, device=self._device)
            least[self._on_device(limited)] = cut(self._pick(probs, limited), top_k, top_p, min_p)
            probs.mul_(probs >= least)
        return draw(probs, self._on_device(uniforms(columns.seed[rows], num_output)))

    def _pick(self, tensor: Tensor, indices: Longs) -> Tensor:
        """These rows, increasing: a copy, or the tensor itself if they are all."""
        return tensor if len(indices) == len(tensor) else tensor[self._on_device(indices)]

    def _ending_bad_words(self, row: int, batch: InputBatch) -> Tensor:
        """The tokens that would complete a bad word of the request in `row`."""
        output = batch.token_ids[row, batch.num_prompt_tokens[row] : batch.num_tokens[row]]
        endings: list[Longs] = []
        for beginnings, lasts in self._bad_words[row]:
            length = beginnings.shape[1]
            if length <= len(output):
                endings.append(lasts[(beginnings == output[len(output) - length :]).all(axis=1)])
        return self._on_device(np.concatenate(endings) if endings else np.zeros(0, np.int64))

    def _own_seed(self, request_id: str) -> int:
        name = f"{self._seed}/{request_id}".encode()
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")

    def _ids(self, token_ids: Sequence[int]) -> Tensor:
        return torch.tensor(token_ids, dtype=torch.int64, device=self._device)

    def _on_device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _column(self, values: NDArray[np.generic], rows: Longs) -> Tensor:
        return self._on_device(values[rows])[:, None]


def token_logprobs(logits: Tensor, token_ids: Longs, counts: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of raw `logits`: the log-probability and rank of its token, and its `counts` likeliest tokens."""
    own = logits.gather(1, torch.from_numpy(token_ids).to(logits.device)[:, None])
    ranks = torch.count_nonzero(logits > own, dim=1) + 1
    top = logits.topk(max(counts), dim=1)
    total = logits.logsumexp(dim=1, keepdim=True)
    rows = zip(
        token_ids.tolist(),
        (own - total)[:, 0].tolist(),
        ranks.tolist(),
        top.indices.tolist(),
        (top.values - total).tolist(),
        counts,
        strict=True,
    )
    return [
        TokenLogprobs([token_id, *likeliest[:count]], [logprob, *theirs[:count]], rank)
        for token_id, logprob, rank, likeliest, theirs, count in rows
    ]


def _where(condition: NDArray[np.generic]) -> list[int]:
    indices: list[int] = np.flatnonzero(condition).tolist()
    return indices


def _forbid(logits: Tensor, forbidden: list[tuple[int, Tensor]]) -> None:
    """Make token ids impossible, given by index of the row."""
    for index, token_ids in forbidden:
        logits[index].index_fill_(0, token_ids, -torch.inf)


def _by_length(sequences: Sequence[Sequence[int]]) -> list[tuple[NDArray[np.int32], Longs]]:
    """Bad words of equal length together: all their tokens but the last [words, length - 1], and the last [words]."""
    groups: dict[int, list[Sequence[int]]] = {}
    for sequence in sequences:
        groups.setdefault(len(sequence), []).append(sequence)
    return [
        (np.array([word[:-1] for word in words], np.int32), np.array([word[-1] for word in words], np.int64))
        for words in groups.values()
    ]
