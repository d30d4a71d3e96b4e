"""From a composed Hydra config to plain, frozen objects: the border beyond which no DictConfig goes."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.workloads import Workload, build
from schedulers import SLO, InputError, Limits, SchedulerContract, TwinserveError
from sim.hardware import num_kv_blocks

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from sim.costs import CostModel

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"

#: Nodes of a config that decide the outcome of a point, and those that only say what to do with it.
POINT_KEYS = ("mode", "scheduler", "model", "device", "cost", "workload", "slo", "seed", "engine")
OTHER_KEYS = ("ask", "results", "path")


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


@dataclass(frozen=True, slots=True)
class Point:
    """One run to be made: everything that decides its outcome.

    Attributes:
        label: the policy's name, with the parameters that differ from its conf file.
        axes: what a sweep varies, for reports.
        folder: where its results lie, named by content: the same point, run by the same code, has the same folder.
        config_yaml: the composed configuration.
    """

    label: str
    axes: dict[str, Any]
    folder: Path
    config_yaml: str
    workload: Workload
    policy: type
    policy_params: dict[str, Any]
    limits: Limits
    cost: CostModel
    slo: SLO
    seed: int

    @property
    def name(self) -> str:
        """The point as a person would say it."""
        told = {key: "recorded" if value is None else value for key, value in self.axes.items() if key != "scheduler"}
        return " ".join([self.label, *(f"{key}={value}" for key, value in told.items())])

    def scheduler(self) -> SchedulerContract:
        """A fresh scheduler of this point's policy."""
        try:
            scheduler: SchedulerContract = self.policy(self.limits, seed=self.seed, **self.policy_params)
        except TypeError as error:
            takes = [name for name in inspect.signature(self.policy).parameters if name not in ("limits", "seed")]
            given = ", ".join(self.policy_params) or "no parameters"
            raise InputError(
                f"scheduler: {self.policy.__name__} cannot be made with {given} ({error}); "
                f"besides the limits it takes {', '.join(takes) or 'none'}"
            ) from error
        return scheduler


def read_point(composed: Composed) -> Point:
    """The point that a composed config describes.

    Raises:
        InputError: a key is unknown, missing or refused; the message names it.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config, choices, varied = composed.config, composed.choices, composed.varied
    unknown = [str(key) for key in config if key not in POINT_KEYS + OTHER_KEYS]
    if unknown:
        raise InputError(f"unknown key {unknown[0]!r}; there are {', '.join(POINT_KEYS + OTHER_KEYS)}")
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise InputError(str(error).splitlines()[0]) from error
    decisive: dict[str, Any] = {key: plain[key] for key in POINT_KEYS}
    if not isinstance(plain["results"], str) or not plain["results"]:
        raise InputError(f"results={plain['results']}: it must be a folder to write to")
    missing = _missing(decisive)
    if missing:
        raise InputError(f"{missing} has no value yet; give one: {missing}=...")

    scheduler, engine = dict(decisive["scheduler"]), decisive["engine"]
    target = scheduler.pop("_target_")
    policy = find_class(target, "scheduler._target_")
    model, device = make(config.model, "model"), make(config.device, "device")
    tensor_parallel = engine["tensor_parallel"]
    limits = Limits(
        token_budget=scheduler.pop("token_budget"),
        max_num_seqs=scheduler.pop("max_num_seqs"),
        num_blocks=_whole_number("engine.num_blocks", engine["num_blocks"])
        or num_kv_blocks(model, device, engine["block_size"], engine["memory_utilization"], tensor_parallel),
        block_size=engine["block_size"],
        max_model_len=_whole_number("engine.max_model_len", engine["max_model_len"]) or model.max_model_len,
        prefix_caching=engine["prefix_caching"],
    )
    label = choices["scheduler"] if choices["scheduler"] != "custom" else policy.__name__
    tuned = {key.removeprefix("scheduler."): value for key, value in _leaves(decisive).items() if key in varied}
    label += "".join(
        f" {key}={tuned[key]}" for key in sorted(scheduler | {"token_budget": 0, "max_num_seqs": 0}) if key in tuned
    )
    axes = {"scheduler": label, "rate": decisive["workload"].get("rate"), "seed": decisive["seed"]}
    leaves = _leaves(decisive)
    for key in varied:
        told_elsewhere = key in ("workload.rate", "seed") or key.startswith("scheduler") or key.endswith("path")
        if key in leaves and not told_elsewhere:
            axes[key] = leaves[key]
        elif key in choices and key not in ("scheduler", "experiment"):
            axes[key] = choices[key]
    cost = make(config.cost, "cost", model=model, device=device, tensor_parallel=tensor_parallel)
    digest = _digest(decisive, policy, cost)
    rate = f"-rate{axes['rate']:g}" if isinstance(axes["rate"], int | float) else ""
    return Point(
        label=label,
        axes=axes,
        folder=Path(plain["results"]) / "points" / f"{_slug(label)}{rate}-seed{decisive['seed']}-{digest}",
        config_yaml=OmegaConf.to_yaml(OmegaConf.create(decisive)),
        workload=build(config.workload),
        policy=policy,
        policy_params=scheduler,
        limits=limits,
        cost=cost,
        slo=make(config.slo, "slo"),
        seed=decisive["seed"],
    )


def make(node: DictConfig, name: str, **arguments: Any) -> Any:
    """The object that a config node describes by its `_target_`.

    Raises:
        InputError: what its class refused, in its words.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    try:
        construct = instantiate(
            node, _convert_="all", _partial_=True
        )  # arguments of Hydra's own would become plain dicts
        return construct(**arguments)
    except InstantiationException as error:
        if isinstance(error.__cause__, TwinserveError):
            raise error.__cause__ from None
        raise InputError(f"{name}: {error.__cause__ or error}") from error
    except TypeError as error:
        raise InputError(f"{name}: {error}") from error


def find_class(target: str, key: str) -> type:
    """The class at a dotted import path.

    Raises:
        InputError: there is none; the message says what was found on the way.
    """
    module_name, _, name = str(target).rpartition(".")
    if not module_name:
        raise InputError(f"{key}={target}: it must be an import path such as package.module.Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{key}={target}: there is no module {error.name!r}; it must lie in this folder or on PYTHONPATH"
        ) from error
    except Exception as error:
        raise InputError(f"{key}={target}: importing {module_name} raised {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        classes = [
            known for known, value in vars(module).items() if inspect.isclass(value) and not known.startswith("_")
        ]
        raise InputError(
            f"{key}={target}: {module_name} has no class {name!r}; it has {', '.join(sorted(classes)) or 'none'}"
        )
    return found


def _whole_number(key: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise InputError(f"{key}={value}: it must be a whole number of at least 1, or null")


def _missing(node: Any, path: str = "") -> str | None:
    """The first key whose value is ???."""
    if node == "???":
        return path
    if isinstance(node, dict):
        for key, value in node.items():
            found = _missing(value, f"{path}.{key}" if path else str(key))
            if found:
                return found
    return None


def _leaves(node: Any, path: str = "") -> dict[str, Any]:
    """All scalar values by dotted key."""
    if not isinstance(node, dict):
        return {path: node}
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        leaves.update(_leaves(value, f"{path}.{key}" if path else str(key)))
    return leaves


def _digest(decisive: dict[str, Any], policy: type, cost: CostModel) -> str:
    """What a point's outcome depends on, in ten hex digits: its config, its prices, the code, the files it names."""
    hasher = hashlib.sha256(json.dumps([decisive, cost.describe()], sort_keys=True, default=str).encode())
    rooms = (ROOT / "schedulers", ROOT / "sim", ROOT / "experiments" / "workloads")
    sources = {file for room in rooms for file in room.rglob("*.py")}
    sources.update(ROOT / "experiments" / f"{name}.py" for name in ("columns", "metrics", "run", "storage", "trace"))
    policy_source = inspect.getsourcefile(policy)
    if policy_source:
        sources.add(Path(policy_source).resolve())
    for key, value in _leaves(decisive).items():
        if key.endswith("path") and value:
            path = Path(value)
            sources.update(file for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())
    for file in sorted(sources):
        hasher.update(file.read_bytes())
    return hasher.hexdigest()[:10]


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._=" else "-" for letter in text)
