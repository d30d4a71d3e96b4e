"""Models and devices as conf/ gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from sim.hardware import Device, ModelShape

_CONF = Path(__file__).resolve().parents[2] / "conf"


def load(group: str, name: str) -> DictConfig:
    config = OmegaConf.load(_CONF / group / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    return config


def names(group: str) -> list[str]:
    return sorted(file.stem for file in (_CONF / group).glob("*.yaml"))


def model(name: str) -> ModelShape:
    made: Any = instantiate(load("model", name))
    assert isinstance(made, ModelShape)
    return made


def device(name: str) -> Device:
    made: Any = instantiate(load("device", name))
    assert isinstance(made, Device)
    return made
