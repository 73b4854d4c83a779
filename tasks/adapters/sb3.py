"""Algorithms of Stable-Baselines3 and sbx as tasks: ``sb3:PPO``, ``sbx:PPO``.

An algorithm of sb3_contrib has its name, too (``sb3:TQC``), and a subclass of the user's ``sb3:package.module:Class``.
The model trains in Rekindle's environments by its own ``learn``, which is called once per epoch and continues where it
was. After any number of epochs the parameters are those of one call of ``learn``. The state is data: networks,
optimizers, buffers, counters, the last observations, moments of observations and rewards, random generators and the
environments.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, overload

try:
    from stable_baselines3.common.base_class import BaseAlgorithm
except ImportError as error:
    raise ImportError(
        "tasks sb3:NAME need Stable-Baselines3: pip install stable-baselines3, and tasks sbx:NAME need sbx: "
        f"pip install sbx-rl ({error})"
    ) from error

from ...spaces import Space, argument
from ...spaces.choices import Argument, name_of
from ...spaces.errors import near
from ..identity import EnvLike
from ..registry import load
from ..task import Task
from .jax_trees import start
from .model_learner import SB3Learner, resumable
from .model_spaces import COMMON, ELSEWHERE, NORMALIZE, OF_SBX, SPACES
from .subclass_state import parameters_of


class Library(NamedTuple):
    """A library whose algorithms are tasks.

    Attributes:
        title: its name.
        packages: its packages, by what pip calls them.
        names: names of its algorithms.
        below: what pip calls packages on which their last bits depend, too.
        version: version of their tasks, as algorithms have one.
    """

    title: str
    packages: Mapping[str, str]
    names: Collection[str]
    below: Collection[str] = ()
    version: int = 1

    def has(self, algorithm: type) -> bool:
        """Return whether a class is one of the algorithms."""
        return algorithm.__name__ in self.names and algorithm.__module__.partition(".")[0] in self.packages.values()

    def versions(self) -> dict[str, str]:
        """Return the versions of those packages that are installed."""
        return {name: number for name in (*self.packages, *self.below) if (number := _version(name))}


LIBRARIES = {
    "sb3": Library(
        "Stable-Baselines3", {"stable-baselines3": "stable_baselines3", "sb3-contrib": "sb3_contrib"}, [*SPACES]
    ),
    "sbx": Library(
        "sbx", {"sbx-rl": "sbx"}, OF_SBX, ["stable-baselines3", "jax", "jaxlib", "flax", "optax"], version=2
    ),
}
DROQ = (
    "; it is SAC with dropout, sbx:SAC with --set gradient_steps=20 --set policy_delay=20 --set "
    """policy_kwargs='{"dropout_rate": 0.01, "layer_norm": true}'"""
)


def __getattr__(name: str) -> Any:
    if name not in SPACES and ":" not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(name if name.startswith("sbx:") else f"sb3:{name}")


@overload
def SB3(model_class: type[BaseAlgorithm]) -> type[Task]: ...
@overload
def SB3(model_class: type[BaseAlgorithm], env: EnvLike, **options: Any) -> Task: ...
def SB3(  # noqa: N802
    model_class: type[BaseAlgorithm], env: EnvLike = None, **options: Any
) -> type[Task] | Task:
    """Return an algorithm or its subclass as a task class or task.

    Other processes import a subclass, and the classes among the options, such as a policy, so they must be at the top
    level of a module.

    Args:
        model_class: class of Stable-Baselines3, sb3_contrib or sbx, or one that derives from it.
        env: environment of the task; None returns the class.
        options: arguments of the task, such as its seed and its storage, and of the algorithm, which are fixed
            hyperparameters, such as ``policy_kwargs={"net_arch": [64], "activation_fn": torch.nn.ReLU}``.

    Raises:
        ValueError: the class is none of these, or cannot be imported.
        TypeError: an option is an argument of the algorithm's that a task decides otherwise.
    """
    library = _library_of(model_class)
    name = model_class.__name__ if LIBRARIES[library].has(model_class) else name_of(model_class)
    task: type[Task] = load(f"{library}:{name}")
    if env is None and options:
        raise TypeError(f"{next(iter(options))} belongs to a task of {task.name}, but there is no env; give one")
    space = task.learner.hyperparameters.flat()
    for option, value in options.items():
        if option in ELSEWHERE and option not in inspect.signature(Task).parameters:
            raise TypeError(f"a task of {task.name} takes no {option}; it has {ELSEWHERE[option]}")
        if isinstance(dimension := space.get(option), Argument):
            options[option] = dimension.check(value, option)
    return task if env is None else task(env, **options)


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return ""


def _library_of(algorithm: type) -> str:
    """Return the library from which a class derives."""
    return "sbx" if any(part.__module__.partition(".")[0] == "sbx" for part in algorithm.__mro__) else "sb3"


def _offered(library: str, name: str) -> type[BaseAlgorithm]:
    """Return the algorithm of a library with this name.

    Raises:
        ImportError: its package is not installed.
        ValueError: the library has none of this name.
    """
    packages, names = LIBRARIES[library].packages, LIBRARIES[library].names
    if name not in names:
        hint = DROQ if (library, name) == ("sbx", "DroQ") else near(name, names)
        raise ValueError(f"{library}: has {', '.join(names)}, but got {name!r}{hint}")
    for pip, package in packages.items():
        try:
            module = importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"{library}:{name} needs {package}: pip install {pip} ({error})") from error
        if hasattr(module, name):
            break
    algorithm: type[BaseAlgorithm] = getattr(module, name)
    return algorithm


def _subclass(library: str, path: str) -> type[BaseAlgorithm]:
    """Return the class of the user's at ``package.module:Class``."""
    name, (module, _, attribute) = f"{library}:{path}", path.partition(":")
    try:
        algorithm = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the algorithm {name} cannot be imported: {error}") from error
    if not isinstance(algorithm, type) or not issubclass(algorithm, BaseAlgorithm):
        title = LIBRARIES[library].title
        raise ValueError(f"{name} must be a class that derives from an algorithm of {title}, not {algorithm!r}")
    if (other := _library_of(algorithm)) != library:
        raise ValueError(f"{name} derives from an algorithm of {LIBRARIES[other].title}: write {other}:{path}")
    return algorithm


def model(name: str) -> type[Task]:
    """Return the task class of an algorithm of Stable-Baselines3 or sbx.

    Args:
        name: "sb3:" or "sbx:" and the name of the algorithm.

    Raises:
        ImportError: its package is not installed.
        ValueError: there is no such algorithm, or it is not known to resume exactly.
    """
    prefix, _, short = name.partition(":")
    library = LIBRARIES[prefix]
    algorithm = _subclass(prefix, short) if ":" in short else _offered(prefix, short)
    bases = [part for part in algorithm.__mro__ if library.has(part)]
    if not bases:
        raise ValueError(f"{name} must derive from {', '.join(library.names)} of {library.title}")
    base, line = bases[0].__name__, algorithm.__mro__[: algorithm.__mro__.index(bases[0]) + 1]
    space = {key: entry for part in (COMMON, *SPACES[base], NORMALIZE) for key, entry in part.items()}
    if base == "ARS":  # returns are not discounted
        del space["gamma"]
    others = sorted(parameters_of(line) - {*space, *ELSEWHERE})
    space |= {name: argument(silent=True, help="None for the algorithm's own default") for name in others}
    learner, code = SB3Learner, library.versions()
    if prefix == "sbx":
        from .sbx_learner import SBXLearner  # late, since it needs JAX

        learner, code = SBXLearner, {**code, "threads of JAX": str(start())}
    content = {
        "__module__": __name__,
        "model_class": resumable(algorithm),
        "base": base,
        "title": name,
        "definition": algorithm,
        "hyperparameters": Space(**space),
        "code": code,
    }
    about = {"__module__": __name__, "__doc__": f"{short} of {library.title}."}
    learner_class = type(f"{algorithm.__name__}Learner", (learner,), content)
    named = short if prefix == "sb3" else name  # `__getattr__` finds it under this name
    content = {"name": name, "version": library.version, "learner": learner_class, **about}
    return type(named, (Task,), content)
