"""Tensor parallelism: which slice of the model this process holds, and how the slices meet again.

Weights are cut as in Megatron-LM (Shoeybi et al., 2019): the first linear layer of a pair by its output features, the
second by its input features, so that a pair costs one all-reduce. With one process nothing is cut and nothing is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from schedulers.errors import InputError


@dataclass(frozen=True)
class Parallel:
    """The tensor-parallel group as one of its processes sees it. The default is a group of one."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise InputError(f"tensor-parallel rank {self.rank} of {self.size}; ranks count from 0 to size - 1")

    @classmethod
    def join(
        cls, rank: int, size: int, init_method: str, *, backend: str = "gloo", timeout_s: float = 300.0
    ) -> Parallel:
        """Meet the other processes at `init_method` (as torch.distributed takes it, such as `tcp://host:port`).

        Blocks until all `size` processes have come, at most `timeout_s` seconds. A group of one meets nobody.
        """
        parallel = cls(rank, size)
        if size > 1:
            dist.init_process_group(
                backend, init_method=init_method, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
            )
        return parallel

    def leave(self) -> None:
        """Leave the group; other calls must not follow."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def share(self, total: int, what: str) -> range:
        """The part of `total` equal items that this rank holds.

        Raises:
            InputError: the items cannot be shared equally; the message names them.
        """
        if total % self.size:
            raise InputError(f"{total} {what} cannot be shared equally by {self.size} tensor-parallel processes")
        part = total // self.size
        return range(self.rank * part, (self.rank + 1) * part)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `tensor`, on every rank, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's `tensor`, side by side along the last dimension, in the order of ranks, on every rank."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim=-1)
