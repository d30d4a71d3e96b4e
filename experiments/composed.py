"""A composed Hydra config, and how an experiment varies it and reads its own question from it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from experiments.digest import ROOT, dotted
from schedulers import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from omegaconf import DictConfig

CONF = ROOT / "conf"

Question = TypeVar("Question", bound="DataclassInstance")


@contextmanager
def ctrl_c_uncovered() -> Iterator[None]:
    """Ctrl-C stays Ctrl-C where it interrupts a library whose clean-up then fails, as OmegaConf's does now and then.

    Raises:
        KeyboardInterrupt: an error came up while one was on its way.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        behind: list[BaseException] = [error]
        for one in behind:  # which grows
            if isinstance(one, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            behind += [other for other in (one.__cause__, one.__context__) if other and other not in behind]
        raise


@dataclass(frozen=True, slots=True)
class Composed:
    """What Hydra made of a command line, one job of it.

    Attributes:
        config: the composed config, without the node `hydra`.
        choices: the file chosen in each group, such as {"scheduler": "fcfs"}.
        varied: the keys given on the command line or swept, such as "workload.rate".
    """

    config: DictConfig
    choices: dict[str, str]
    varied: list[str]

    def with_values(self, values: Mapping[str, Any]) -> Composed:
        """The same with other values at dotted keys, such as {"workload.rate": 3.0}, as if swept over."""
        from omegaconf import OmegaConf

        config = copy.deepcopy(self.config)
        OmegaConf.set_struct(config, False)
        for key, value in values.items():
            OmegaConf.update(config, key, value, merge=False)
        return replace(self, config=config, varied=list(dict.fromkeys([*self.varied, *values])))

    def with_rate(self, rate: float) -> Composed:
        """The same at `rate` arrivals a second.

        Raises:
            InputError: the workload has no such key.
        """
        if "rate" not in self.config.workload:
            raise InputError(
                f"workload={self.choices.get('workload')} has no workload.rate, which this experiment has to choose; "
                "choose a workload whose requests come at a rate"
            )
        return self.with_values({"workload.rate": rate})

    def with_choice(self, group: str, name: str) -> Composed:
        """The same with the file `name` of a group of conf/, and all that it builds on, in place of the one chosen.

        What the command line gave of the group stays as given, as far as the file has such keys.
        """
        from hydra import compose, initialize_config_dir
        from hydra.core.global_hydra import GlobalHydra
        from omegaconf import OmegaConf

        is_ready = GlobalHydra.instance().is_initialized()  # as it is where a command line was read
        with nullcontext() if is_ready else initialize_config_dir(str(CONF), version_base="1.3"):
            node = compose(f"{group}/{name}")[group]
        there = dotted({group: OmegaConf.to_container(node)})
        given = [
            key
            for key in self.varied
            if key.startswith(f"{group}.") and (name == "custom" or (key in there and not key.endswith("_target_")))
        ]
        values = {group: node, **{key: OmegaConf.select(self.config, key) for key in given}}
        return replace(self.with_values(values), choices={**self.choices, group: name})

    def with_scheduler(self, name: str) -> Composed:
        """The same under the policy `name` of conf/scheduler; its parameters given on the command line stay as given.

        Raises:
            InputError: there is no such policy.
        """
        known = sorted(file.stem for file in (CONF / "scheduler").glob("*.yaml"))
        if name not in known:
            raise InputError(f"there is no scheduler {name!r}; there are {', '.join(known)}")
        return self.with_choice("scheduler", name)

    def question(self, kind: type[Question]) -> Question:
        """The node `question`, what an experiment asks beside its points, as the dataclass `kind`.

        Raises:
            InputError: a key is unknown or missing; the message names it. What `kind` itself refuses.
        """
        from omegaconf import OmegaConf

        given: Any = OmegaConf.to_container(self.config.get("question") or OmegaConf.create(), resolve=True)
        known = [field.name for field in fields(kind)]
        if unknown := [key for key in given if key not in known]:
            raise InputError(f"unknown key question.{unknown[0]}; there are {', '.join(known)}")
        for field in fields(kind):
            absent = field.name not in given and field.default is MISSING and field.default_factory is MISSING
            if absent or given.get(field.name) == "???":
                raise InputError(f"question.{field.name} has no value yet; give one: question.{field.name}=...")
        return kind(**given)
