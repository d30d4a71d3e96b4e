"""Environment variables that a process needs before torch is loaded, if it is to compute on CPUs.

Both were measured on two cores, bf16 SmolLM2-135M, batch 1, decoding; a variable that the user has set stands.
"""

from __future__ import annotations

import os


def compute_environment() -> dict[str, str]:
    """This process's environment and, where the user did not decide, what makes a computing child quick.

    - OMP_WAIT_POLICY=PASSIVE: threads sleep while they wait for each other. By default they spin, and when anything
      else wants a core (a server's front, another program), spinning threads keep it from the one that they wait for:
      a step beside one busy process took 1,800 ms instead of 27 ms. Alone, both take the same time.
    - THP_MEM_ALLOC_ENABLE=1: torch asks for huge pages, which saves lookups of addresses in the weights and above all
      in the scattered blocks of the KV cache (10 % of a step at batch 1, 5 % at batch 32).
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1", **os.environ}
