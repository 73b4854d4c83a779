"""Algorithms of Stable-Baselines3 as tasks, in Rekindle's environments: ``sb3:PPO``.

An algorithm of sb3_contrib has its name, too (``sb3:TQC``), and a subclass of the user's ``sb3:package.module:Class``.
The model trains by its own ``learn``, which is called once per epoch and continues where it was. After any number of
epochs the parameters are those of one call of ``learn`` in these environments. The state is data: networks, optimizers,
buffers, counters, the last observations, moments of observations and rewards, random generators and the environments.
"""

from __future__ import annotations

import importlib
import inspect
from contextlib import suppress
from typing import Any, overload

try:
    import stable_baselines3
    from stable_baselines3.common.base_class import BaseAlgorithm
except ImportError as error:
    raise ImportError(f"sb3: tasks need Stable-Baselines3: pip install stable-baselines3 ({error})") from error

from ...spaces import Space, argument
from ...spaces.choices import Argument, name_of
from ...spaces.errors import near
from ..identity import EnvLike
from ..registry import load
from ..task import Task
from .model_learner import SB3Learner, resumable
from .model_spaces import COMMON, ELSEWHERE, NORMALIZE, SPACES
from .model_state import parameters_of


def __getattr__(name: str) -> Any:
    if name not in SPACES and ":" not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(f"sb3:{name}")


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
        model_class: class of Stable-Baselines3 or sb3_contrib, or one that derives from it.
        env: environment of the task; None returns the class.
        options: arguments of the task, such as its seed and its storage, and of the algorithm, which are fixed
            hyperparameters, such as ``policy_kwargs={"net_arch": [64], "activation_fn": torch.nn.ReLU}``.

    Raises:
        ValueError: the class is none of these, or cannot be imported.
        TypeError: an option is an argument of the algorithm's that a task decides otherwise.
    """
    name = model_class.__name__ if model_class is _library(model_class.__name__) else name_of(model_class)
    task: type[Task] = load(f"sb3:{name}")
    if env is None and options:
        raise TypeError(f"{next(iter(options))} belongs to a task of sb3:{name}, but there is no env; give one")
    space = task.learner.hyperparameters.flat()
    for option, value in options.items():
        if option in ELSEWHERE and option not in inspect.signature(Task).parameters:
            raise TypeError(f"a task of sb3:{name} takes no {option}; it has {ELSEWHERE[option]}")
        if isinstance(dimension := space.get(option), Argument):
            options[option] = dimension.check(value, option)
    return task if env is None else task(env, **options)


def _library(name: str) -> type[BaseAlgorithm] | None:
    """Return the algorithm of Stable-Baselines3 or sb3_contrib with this name."""
    algorithm: type[BaseAlgorithm] | None = getattr(stable_baselines3, name, None)
    if algorithm is None:
        with suppress(ImportError):
            algorithm = getattr(importlib.import_module("sb3_contrib"), name, None)
    return algorithm


def _subclass(path: str) -> type[BaseAlgorithm]:
    module, _, name = path.partition(":")
    try:
        algorithm = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the algorithm sb3:{path} cannot be imported: {error}") from error
    if not isinstance(algorithm, type) or not issubclass(algorithm, BaseAlgorithm):
        raise ValueError(
            f"sb3:{path} must be a class that derives from an algorithm of Stable-Baselines3, not {algorithm!r}"
        )
    return algorithm


def model(name: str) -> type[Task]:
    """Return the task class of an algorithm of Stable-Baselines3.

    Args:
        name: "sb3:" and the name of the algorithm.

    Raises:
        ValueError: there is no such algorithm, or it is not known to resume exactly.
    """
    short = name.removeprefix("sb3:")
    if ":" not in short and short not in SPACES:
        raise ValueError(f"sb3: has {', '.join(SPACES)}, but got {short!r}{near(short, [*SPACES])}")
    algorithm = _subclass(short) if ":" in short else _library(short)
    if algorithm is None:
        raise ValueError(f"{name} needs sb3_contrib: pip install sb3-contrib")
    base = next((part.__name__ for part in algorithm.__mro__ if _library(part.__name__) is part), "")
    if base not in SPACES:
        raise ValueError(f"{name} must derive from {', '.join(SPACES)}, but it derives from {base or 'none of them'}")
    space = {key: entry for part in (COMMON, *SPACES[base], NORMALIZE) for key, entry in part.items()}
    if base == "ARS":  # returns are not discounted
        del space["gamma"]
    line = algorithm.__mro__[: [part.__name__ for part in algorithm.__mro__].index(base) + 1]
    others = sorted(parameters_of(line) - {*space, *ELSEWHERE})
    space |= {name: argument(silent=True, help="None for the algorithm's own default") for name in others}
    content = {
        "__module__": __name__,
        "model_class": resumable(algorithm),
        "base": base,
        "place": name,
        "hyperparameters": Space(**space),
    }
    learner = type(f"{algorithm.__name__}Learner", (SB3Learner,), content)
    about = {"name": name, "learner": learner, "__module__": __name__, "__doc__": f"{short} of Stable-Baselines3."}
    return type(short, (Task,), about)  # found by `__getattr__` under this name
