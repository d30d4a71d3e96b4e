"""The border between a workload and the model it is sent to: nothing longer than the model allows gets through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from experiments.workloads import checks
from experiments.workloads.request import WorkloadRequest
from schedulers.errors import InputError

#: What can be done with a request that is too long.
TOO_LONG = ("error", "drop")


class Checked(NamedTuple):
    """Requests that fit the model, in order, and how many were dropped because they do not."""

    requests: Sequence[WorkloadRequest]
    num_dropped: int


def check_lengths(requests: Sequence[WorkloadRequest], max_model_len: int, too_long: str = "error") -> Checked:
    """Keep the requests whose prompt and output together have at most `max_model_len` tokens.

    The output counts as far as the client's max_tokens lets it grow.

    Args:
        too_long: "error" refuses the workload if any request is longer; "drop" leaves longer ones out, and whoever
            follows one of them takes its place.

    Raises:
        InputError: naming the first longer request, its lengths and the limit; or nothing is left.
    """
    checks.one_of("workload.too_long", too_long, TOO_LONG)
    if not any(_num_tokens(request) > max_model_len for request in requests):
        return Checked(requests, 0)
    fitting: list[WorkloadRequest] = []
    longer: dict[str, WorkloadRequest] = {}
    for request in requests:
        place = longer.get(request.follows, request)
        if place is not request:
            request = replace(request, follows=place.follows, think_s=place.think_s, arrival_s=place.arrival_s)  # noqa: PLW2901
        if _num_tokens(request) <= max_model_len:
            fitting.append(request)
        else:
            longer[request.request_id] = request
    num_longer = len(requests) - len(fitting)
    if too_long == "error":
        first = next(iter(longer.values()))
        raise InputError(
            f"{first.name}: {first.num_prompt_tokens} prompt and {first.num_answer_tokens} output tokens are "
            f"{_num_tokens(first)}, but the model takes at most {max_model_len}; {num_longer} of {len(requests)} "
            f"requests are too long: leave them out with workload.too_long=drop, or choose a model that takes "
            f"{max(map(_num_tokens, requests))} tokens"
        )
    if not fitting:
        raise InputError(
            f"all {len(requests)} requests of the workload are longer than the {max_model_len} tokens the model takes; "
            "choose shorter lengths or a model with a higher limit"
        )
    # Whoever took the place of one that waited for nobody stands where it followed; the sort is stable.
    fitting.sort(key=lambda request: (bool(request.follows), request.arrival_s))
    return Checked(fitting, num_longer)


def _num_tokens(request: WorkloadRequest) -> int:
    return request.num_prompt_tokens + request.num_answer_tokens
