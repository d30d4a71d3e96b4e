"""From a composed Hydra config to plain, frozen objects: the border beyond which no DictConfig goes."""

from __future__ import annotations

import importlib
import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.composed import Composed, ctrl_c_uncovered
from experiments.digest import digest, dotted
from experiments.workloads import Predictor, Workload, WorkloadRequest, build, checks
from schedulers import SLO, InputError, Limits, SchedulerContract, SchedulerError, TwinserveError
from schedulers.errors import blaming
from sim.hardware import ModelShape, num_kv_blocks

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from experiments.real_run import RealEngine
    from sim.costs import CostModel
    from sim.routing import Router

#: Nodes of a config that decide the outcome of a point, and those that only say what to do with it.
POINT_KEYS = (
    "mode", "scheduler", "router", "model", "device", "cost", "workload", "predictor", "slo", "seed", "engine",
)  # fmt: skip
OTHER_KEYS = ("ask", "question", "results", "path", "jobs")
#: Those that decide nothing in a real run: the machine is what it is, and there is one engine.
SIMULATED_KEYS = ("device", "cost", "router")


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """The node `engine`: what an engine can hold, whatever the policy. See conf/config.yaml for each key.

    Raises:
        InputError: a value is not of its kind; the message names it.
    """

    block_size: int
    num_blocks: int | None
    memory_utilization: float
    tensor_parallel: int
    prefix_caching: bool
    max_model_len: int | None
    replicas: int

    def __post_init__(self) -> None:
        checks.count("engine.block_size", self.block_size)
        checks.count("engine.replicas", self.replicas)
        checks.count("engine.tensor_parallel", self.tensor_parallel)
        checks.positive("engine.memory_utilization", self.memory_utilization)
        checks.flag("engine.prefix_caching", self.prefix_caching)
        for key in ("num_blocks", "max_model_len"):
            if (value := getattr(self, key)) is not None:
                checks.count(f"engine.{key}", value)


@dataclass(frozen=True, slots=True)
class Point:
    """One run to be made: everything that decides its outcome.

    Attributes:
        label: the policy's name, with the parameters that differ from its conf file.
        axes: what a sweep varies, for reports.
        folder: where its results lie, named by content: the same point, run by the same code, has the same folder.
        config_yaml: the composed configuration.
        predictor: tells the policy how long outputs will be, if it does.
        cost: prices the steps of a simulation; None in a real run, whose steps take what they take.
        real: the engine of a real run; None: the point is simulated.
        timing: where its step times come from, in one line for reports.
        keep_decisions: whether the folder is to hold every decision of every step, for a replay.
        replicas: engines, each with the limits; a router shares requests out.
    """

    label: str
    axes: dict[str, Any]
    folder: Path
    config_yaml: str
    workload: Workload
    predictor: Predictor
    policy: type
    policy_params: dict[str, Any]
    limits: Limits
    cost: CostModel | None
    real: RealEngine | None
    timing: str
    keep_decisions: bool
    slo: SLO
    seed: int
    replicas: int
    router_class: type
    router_params: dict[str, Any]

    @property
    def name(self) -> str:
        """The point as a person would say it."""
        told = {key: Path(str(value)).name if key.endswith("path") else value for key, value in self.axes.items()}
        if told["rate"] is None:
            told["rate"] = "recorded" if hasattr(self.workload, "rate") else "none"
        return " ".join([self.label, *(f"{key}={value}" for key, value in told.items() if key != "scheduler")])

    def predicted(self, request: WorkloadRequest) -> float | None:
        """Output tokens that the predictor tells the policy to expect; None: it says nothing.

        Raises:
            SchedulerError: the predictor failed.
        """
        with blaming(self.predictor, request.request_id):
            tokens: Any = self.predictor.predict(request, self.seed)
        if tokens is None or (isinstance(tokens, int | float) and 0 <= tokens < float("inf")):
            return tokens
        raise SchedulerError(
            f"{type(self.predictor).__name__} predicts {tokens!r} output tokens for request {request.request_id!r}; "
            "it must be a finite number, 0 or above, or None"
        )

    def scheduler(self) -> SchedulerContract:
        """A fresh scheduler of this point's policy."""
        scheduler: SchedulerContract = _made(
            "scheduler", self.policy, self.limits, seed=self.seed, **self.policy_params
        )
        return scheduler

    def router(self) -> Router:
        """A fresh router."""
        router: Router = _made("router", self.router_class, seed=self.seed, **self.router_params)
        return router


def _made(what: str, kind: type, *given: Any, **params: Any) -> Any:
    """An object of a class that a person chose, with the parameters that he gave.

    Raises:
        InputError: it does not take them.
    """
    try:
        return kind(*given, **params)
    except TypeError as error:
        own = ("limits", "seed")  # those that it is always given
        takes = [name for name in inspect.signature(kind).parameters if name not in own]
        with_what = ", ".join(name for name in params if name not in own) or "no parameters"
        raise InputError(
            f"{what}: {kind.__name__} cannot be made with {with_what} ({error}); "
            f"of its own it takes {', '.join(takes) or 'none'}"
        ) from error


@ctrl_c_uncovered()
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
    _check_whole(plain)
    decisive: dict[str, Any] = {key: plain[key] for key in POINT_KEYS}
    if not isinstance(plain["results"], str) or not plain["results"]:
        raise InputError(f"results={plain['results']}: it must be a folder to write to")
    missing = _missing(decisive)
    if missing:
        raise InputError(f"{missing} has no value yet; give one: {missing}=...")

    scheduler = dict(decisive["scheduler"])
    target = scheduler.pop("_target_")
    policy = find_class(target, "scheduler._target_")
    router = dict(decisive["router"])
    router_class = find_class(router.pop("_target_"), "router._target_")
    model, device = make(config.model, "model"), make(config.device, "device")
    try:
        engine = Engine(**decisive["engine"])
    except TypeError as error:  # a key too many, or one too few
        raise InputError(f"engine: {error}; there are {', '.join(Engine.__slots__)}") from error
    if engine.num_blocks is None and decisive["mode"]["name"] == "real":
        raise InputError(
            "engine.num_blocks=null: a real run needs the number of KV blocks, so that the simulation of the same "
            "point holds as many"
        )
    limits = Limits(
        token_budget=scheduler.pop("token_budget"),
        max_num_seqs=scheduler.pop("max_num_seqs"),
        num_blocks=engine.num_blocks
        or num_kv_blocks(model, device, engine.block_size, engine.memory_utilization, engine.tensor_parallel),
        block_size=engine.block_size,
        max_model_len=engine.max_model_len or model.max_model_len,
        prefix_caching=engine.prefix_caching,
    )
    if engine.replicas > 1:
        _check_cluster(engine.replicas, decisive)
    if decisive["mode"]["name"] == "real":
        for key in SIMULATED_KEYS:
            del decisive[key]
        choices = {group: chosen for group, chosen in choices.items() if group not in SIMULATED_KEYS}
    label = choices["scheduler"] if choices["scheduler"] != "custom" else policy.__name__
    nodes = dotted(decisive)
    label += "".join(
        f" {key.removeprefix('scheduler.')}={nodes[key]}"
        for key in sorted({*varied} & nodes.keys() - {"scheduler._target_"})
        if key.startswith("scheduler.")
    )
    axes = {"scheduler": label, "rate": decisive["workload"].get("rate"), "seed": decisive["seed"]}
    for key in varied:
        if key in ("workload.rate", "seed", "experiment") or key.startswith("scheduler"):
            continue
        if key in choices:
            axes[key] = choices[key]
        elif key in nodes:
            axes[key] = nodes[key]
    workload = build(config.workload)
    predictor = make(config.predictor, "predictor")
    checks.made("predictor", predictor, "predict", "{_target_: experiments.workloads.Oracle}")
    classes = policy, type(workload), type(predictor)
    cost, real = None, None
    if decisive["mode"]["name"] == "sim":
        cost = make(config.cost, "cost", model=model, device=device, tensor_parallel=engine.tensor_parallel)
        timing: str = cost.describe()
        content = digest(decisive, (*classes, router_class, type(cost)), timing)
    else:
        real = _real_engine(decisive["mode"], model, engine.tensor_parallel)
        timing = real.describe()
        content = digest(decisive, (*classes, type(real)), f"{timing} of {os.uname().nodename}")
    rate = f"-rate{axes['rate']:g}" if isinstance(axes["rate"], int | float) else ""
    return Point(
        label=label,
        axes=axes,
        folder=Path(plain["results"]) / "points" / f"{_slug(label)}{rate}-seed{decisive['seed']}-{content}",
        config_yaml=OmegaConf.to_yaml(OmegaConf.create(decisive)),
        workload=workload,
        predictor=predictor,
        policy=policy,
        policy_params=scheduler,
        limits=limits,
        cost=cost,
        real=real,
        timing=timing,
        keep_decisions=decisive["mode"]["decisions"],
        slo=make(config.slo, "slo"),
        seed=decisive["seed"],
        replicas=engine.replicas,
        router_class=router_class,
        router_params=router,
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


def _check_whole(plain: dict[str, Any]) -> None:
    """Refuse a config of which something was deleted (`~seed`), or that asks for a world that is not there."""
    nodes = {"scheduler": ("_target_", "token_budget", "max_num_seqs"), "router": ("_target_",)}
    for key in (*POINT_KEYS, "results"):
        if key not in plain:
            raise InputError(f"{key} is missing, and every run needs one")
        for name in nodes.get(key, ()):
            if name not in plain[key]:
                raise InputError(f"{key}.{name} is missing, and every run needs one")
    if plain["mode"].get("name") not in ("sim", "real"):
        raise InputError(f"mode={plain['mode']}: there are mode=sim and mode=real")
    checks.flag("mode.decisions", plain["mode"].get("decisions"))
    if plain["mode"]["name"] == "sim" and (unknown := plain["mode"].keys() - {"name", "decisions"}):
        raise InputError(f"unknown key mode.{min(unknown)}; mode=sim has decisions alone")
    checks.seed("seed", plain["seed"])


def _check_cluster(replicas: int, decisive: dict[str, Any]) -> None:
    """Refuse what only a single engine can do."""
    asked = f"engine.replicas={replicas}"
    if decisive["mode"]["name"] == "real":
        raise InputError(f"{asked}: mode=real serves with one engine; clusters are simulated, with mode=sim")
    if decisive["mode"]["decisions"]:
        raise InputError(f"{asked}: decisions are kept of a single engine; leave mode.decisions=false")
    if str(decisive["cost"].get("_target_")).startswith("sim.costs.Recorded"):
        raise InputError(f"{asked}: cost=recorded has the steps of a single engine; choose another cost")


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


def _real_engine(mode: dict[str, Any], model: ModelShape, tensor_parallel: int) -> RealEngine:
    """The engine of a real run. Only here does an experiment import the real world."""
    try:
        from experiments.real_run import RealEngine
    except ModuleNotFoundError as error:
        raise InputError(
            f"mode=real needs {error.name}, which is not installed: pip install twinserve[real]"
        ) from error
    settings = {key: value for key, value in mode.items() if key not in ("name", "decisions")}
    try:
        return RealEngine(model=model, tensor_parallel=tensor_parallel, **settings)
    except TypeError as error:  # a key too many, or one too few
        raise InputError(f"mode: {error}; see conf/mode/real.yaml for what there is") from error


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in text)
