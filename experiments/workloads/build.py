"""From a composed Hydra config to a workload: the border beyond which no DictConfig goes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from experiments.workloads.request import Workload
from schedulers.errors import InputError, TwinserveError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def build(config: DictConfig) -> Workload:
    """The workload that the node `workload` of a composed config describes.

    `hydra.utils.instantiate` with its errors made plain: what a class refused comes out as that class said it.

    Raises:
        InputError: a value is missing or refused, or an option does not exist; the message names it.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate
    from omegaconf.errors import MissingMandatoryValue

    try:
        workload: Workload = instantiate(config, _convert_="all")
    except MissingMandatoryValue as error:
        key = str(error.full_key)
        key = key if key.startswith("workload.") else f"workload.{key}"
        raise InputError(f"{key} has no value yet; give one: {key}=...") from None
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, TwinserveError):
            raise type(cause)(_of_part(str(cause), str(error))) from None
        raise InputError(f"workload: {cause or error}") from error
    return workload


def _of_part(refusal: str, error: str) -> str:
    """What a class refused; where it stands in a part of a mixture, with the keys as the command line has them."""
    part = re.search(r"full_key: (?:workload\.)?(.*\.workload)\b", error)
    return refusal.replace("workload.", f"workload.{part[1]}.") if part else refusal
