"""The application behind `python -m platform` and `twinserve`: from a command line to the experiment it asks for."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.composed import CONF, Composed, ctrl_c_uncovered
from schedulers import InputError, TwinserveError

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: Groups whose files a person chooses between, in the order of the usage text.
GROUPS = ("experiment", "scheduler", "router", "workload", "model", "device", "cost", "predictor", "slo", "mode")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return the exit status.

    0: done; 1: something asked for failed; 2: the command line or an input is wrong; 130: interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = dispatch(arguments)
        sys.stdout.flush()
        return status  # noqa: TRY300 - a broken pipe may show only when flushed
    except TwinserveError as error:
        return report(error)
    except KeyboardInterrupt:
        print("\ninterrupted; finished points are kept, and the same command goes on from there", file=sys.stderr)
        return 130
    except BrokenPipeError:  # such as `python -m platform | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def dispatch(arguments: list[str]) -> int:
    """Answer a command line: the usage text, or what Hydra makes of it."""
    if not arguments:
        print(usage(("experiment", "scheduler")))
        return 0
    if "-h" in arguments or "--help" in arguments:
        print(usage((*GROUPS, "hydra/launcher")))
        return 0
    check_choices(arguments)
    return run_hydra(choose_custom(arguments))


def report(error: TwinserveError) -> int:
    """Say what went wrong and return the exit status for it."""
    print(f"error: {error}", file=sys.stderr)
    return 2 if isinstance(error, InputError) else 1


def run_hydra(arguments: list[str]) -> int:
    """Let Hydra compose the config and run `answer` on it, once or as a sweep; return the exit status.

    Raises:
        TwinserveError: the config could not be composed, or a worker died.
    """
    import hydra
    from hydra.errors import HydraException
    from joblib.externals.loky.process_executor import TerminatedWorkerError
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come here, rather than out as Hydra's shortened traceback
    import_from_here()
    sys.argv = ["twinserve", *arguments]
    try:
        with ctrl_c_uncovered():
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(answer)()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(plain(error)) from error
    except TerminatedWorkerError as error:
        raise TwinserveError(
            "a worker process of the sweep was killed (was memory short?); finished points are kept, and the same "
            "command goes on from there"
        ) from error
    except Exception as error:
        if not {"ray", "submitit"} & set(rooms_of(error)):
            raise
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise TwinserveError(
            f"the sweep's launcher gave up ({said[-1].strip()}); finished points are kept, and the same command goes "
            "on from there"
        ) from error
    return 0


def rooms_of(error: Exception) -> list[str]:
    """The packages that an error's class, and the code that raised it, come from."""
    places = [type(error).__module__]
    trace = error.__traceback__
    while trace is not None:
        places.append(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return [place.partition(".")[0] for place in (places[0], places[-1])]


def answer(config: DictConfig) -> None:
    """Hydra's task: call the function that the experiment's `ask` names with the composed config.

    Raises:
        SystemExit: it failed; what went wrong has been said.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    composed = Composed(
        config,
        choices={str(group): str(chosen) for group, chosen in hydra.runtime.choices.items()},
        varied=[override.lstrip("+~").partition("=")[0] for override in hydra.overrides.task],
    )
    try:
        with ctrl_c_uncovered():
            function_at(str(config.ask))(composed)
    except TwinserveError as error:
        raise SystemExit(report(error)) from error
    except BrokenPipeError:
        raise SystemExit(1) from None


def function_at(path: str) -> Callable[[Composed], None]:
    """The function that an experiment's `ask` names.

    Raises:
        InputError: there is none.
    """
    module, _, name = path.rpartition(".")
    try:
        function: Callable[[Composed], None] = getattr(import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise InputError(f"ask={path}: there is no such function ({error}); choose an experiment=...") from error
    return function


def import_from_here() -> None:
    """Let policies be imported from the current folder, here and in the processes of a sweep."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, inherited), folder]))


def choose_custom(arguments: list[str]) -> list[str]:
    """A policy given by its import path alone does not inherit the parameters of another: it is `scheduler=custom`."""
    keys = [argument.partition("=")[0] for argument in arguments]
    if "scheduler._target_" in keys and "scheduler" not in keys:
        return ["scheduler=custom", *arguments]
    return arguments


def check_choices(arguments: Sequence[str]) -> None:
    """Refuse what Hydra would answer at length: a word that is no override, and a file that is not in its group.

    Raises:
        InputError: naming the argument, what there is, and what was probably meant.
    """
    if any(argument.startswith(("--config-dir", "-cd")) for argument in arguments):
        return  # groups may have further files there
    for position, argument in enumerate(arguments):
        key, equals, value = argument.partition("=")
        is_word = not equals and not argument.startswith(("-", "~")) and not arguments[position - 1].startswith("-")
        if is_word:
            groups = [group for group in GROUPS if argument in files_of(group)]
            hint = (
                f"did you mean {groups[0]}={argument}?" if groups else "arguments are key=value, such as experiment=run"
            )
            raise InputError(f"{argument!r} is not understood: {hint}")
        if key == "hydra/launcher":
            check_launcher(value)
        if equals and key in GROUPS and not set(value) & set("([{'\""):  # Hydra's own grammar is left to Hydra
            known = files_of(key)
            for name in value.split(","):
                if name.strip() not in known:
                    close = difflib.get_close_matches(name, known, n=1)
                    hint = f"did you mean {close[0]}? " if close else ""
                    raise InputError(f"there is no {key} {name!r}; {hint}There are: {', '.join(known)}")


def check_launcher(name: str) -> None:
    """Refuse one of Hydra's launchers for clusters whose package is not there.

    Raises:
        InputError: saying how to install it.
    """
    kind = name.partition("_")[0]
    if kind in ("ray", "submitit") and find_spec(f"hydra_plugins.hydra_{kind}_launcher") is None:
        raise InputError(
            f"hydra/launcher={name} needs hydra-{kind}-launcher, which is not installed: pip install twinserve[cluster]"
        )


def files_of(group: str) -> list[str]:
    """The names that can be chosen in a group of conf/."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def summary_of(group: str, name: str) -> str:
    """What a conf file says of itself in its first line of comment."""
    for line in (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            said = line.lstrip("# ")
            return re.split("[:;] ", said)[0] if len(line) > 100 else said
    return ""


def usage(groups: Sequence[str]) -> str:
    """How to call the application, with what there is in these groups."""
    lines = [
        "twinserve: LLM-serving schedulers, written once, in a simulator and in a real engine",
        "",
        "usage: python -m platform [experiment=NAME] [KEY=VALUE ...]      (or: twinserve ...)",
        "",
        "  python -m platform experiment=sched_sweep                       compare schedulers over arrival rates",
        "  python -m platform experiment=run scheduler=fcfs workload.rate=4  one run",
        "  python -m platform experiment=sched_sweep scheduler._target_=my.module.Policy   a policy of your own",
        "  python -m platform experiment=run mode=real model=smollm2-135m  one run in the real engine",
        "  python -m platform experiment=plot path=results/sched_sweep     draw stored results again",
        "",
        "  --cfg job   print the composed configuration        --help   everything there is to choose",
    ]
    for group in groups:
        lines += ["", f"{group}="]
        names = files_of(group)
        width = max(map(len, names), default=0)
        lines += [f"  {name:<{width}}  {summary_of(group, name)}".rstrip() for name in names]
    return "\n".join([*lines, ""])


def plain(error: Exception) -> str:
    """An error of Hydra or OmegaConf in one line, without its advice on tracebacks."""
    from hydra.errors import OverrideParseException

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read: {lines[0]}"
    noise = ("full_key", "object_type", "reference_type", "Set the environment")
    kept = " ".join(line for line in lines if not line.startswith(noise))
    cause = str(error.__cause__).splitlines()[0] if error.__cause__ and str(error.__cause__) else ""
    return f"{kept} ({cause})" if cause else kept
