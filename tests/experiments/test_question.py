"""What an experiment asks beside its points: the node `question`, and the points that it varies."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from omegaconf import DictConfig, OmegaConf

from experiments.composed import Composed
from schedulers import InputError


@dataclass(frozen=True)
class Asked:
    low: float
    repeats: int = 3


def composed(question: object) -> Composed:
    config = DictConfig({"question": question, "workload": {"rate": 1.0}, "mode": {"name": "real", "weights": "x"}})
    OmegaConf.set_struct(config, True)
    return Composed(config, {"mode": "real"}, [])


def test_a_question_becomes_a_dataclass() -> None:
    assert composed({"low": 0.5}).question(Asked) == Asked(0.5, 3)


def test_an_unknown_key_is_named_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"unknown key question\.lwo; there are low, repeats"):
        composed({"lwo": 1}).question(Asked)


@pytest.mark.parametrize("question", [{}, {"low": "???"}, None])
def test_a_key_without_a_value_is_named(question: object) -> None:
    with pytest.raises(InputError, match=r"question\.low=\.\.\."):
        composed(question).question(Asked)


def test_a_varied_value_leaves_the_original_as_it_was_and_is_an_axis() -> None:
    original = composed({"low": 1})
    varied = original.with_values({"workload.rate": 3.0})
    assert (varied.config.workload.rate, original.config.workload.rate) == (3.0, 1.0)
    assert varied.varied == ["workload.rate"]


def test_a_chosen_file_takes_the_place_of_the_whole_node() -> None:
    simulated = composed({"low": 1}).with_choice("mode", "sim")
    assert simulated.config.mode == {"name": "sim", "decisions": False}
    assert simulated.choices == {"mode": "sim"}
