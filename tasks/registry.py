"""Lookup of tasks by name: built-in ones and those of entry points.

Algorithms are imported on first use; this module imports neither them nor `Task`.
"""

from __future__ import annotations

import importlib
import pickle
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import PurePath
from typing import Any

from ..plugins import PluginError, Registry
from ..spaces import unflatten
from .base_learner import BaseLearner
from .catalog import ALGORITHMS, CHOICES, INSTRUMENTS, MAKERS, REFUSED
from .errors import StateMismatch

ENV_ID = r"-v\d+$"  # ends the id of an environment
_DEFINED: dict[str, type[Any]] = {}  # tasks that this process has defined from functions, by name


def define(task: type[Any]) -> type[Any]:
    """Let `load` find a task class in this process.

    Return the class. A later one replaces one of the same name, as when a cell of a notebook runs again.
    """
    _DEFINED[task.name] = task
    return task


def names() -> list[str]:
    """Return the names of all tasks."""
    return sorted(TASKS.names())


def load(name: str) -> type[Any]:
    """Return the task class with this name.

    The name may also be ``package.module:Class``, for a class that no entry point offers, or
    ``package.module:function``, or what an adapter makes a task of, see `adapters`.

    Raises:
        ValueError: no task has the name (the message suggests similar ones), or it cannot be imported, or a package's
            offer is faulty.
    """
    if name in _DEFINED:
        return _DEFINED[name]
    if (maker := MAKERS.get(name.partition(":")[0])) is not None and ":" in name:
        return _made(maker, name)
    letters = name.partition(":")[0].lower().replace("_", "").replace("-", "")
    if name not in TASKS.names() and (reason := REFUSED.get(letters)):
        raise ValueError(f"{name}: {reason}")
    if re.search(ENV_ID, name) and name not in TASKS.names():
        raise ValueError(
            f"a task comes before its environment, but {name!r} is the id of one; write auto {name}, or an algorithm "
            "such as ppo in place of auto"
        )
    if ":" in name and name not in TASKS.names():
        return _in_module(name)
    if name not in TASKS.names() and (name.endswith(".py") or name.startswith("python")):
        script = f"python {name}" if name.endswith(".py") else name
        raise ValueError(
            f"{name!r} is a program, whose task is command: `rekindle tune command --space FILE -- {script} ...`; a "
            "function in train.py is train:FUNCTION"
        )
    task: type[Any] = TASKS.load(name)
    return task


def sendable(task_class: type[Any]) -> type[Any] | str:
    """Return what another process finds a class by: itself, or its name.

    A class that `load` has made, such as that of a program, is no attribute of a module.
    """
    try:
        pickle.dumps(task_class)
    except (pickle.PicklingError, AttributeError):
        with suppress(ValueError):
            if load(task_class.name) is task_class:
                return str(task_class.name)
    return task_class


def task_of(identity: Mapping[str, Any], **options: Any) -> Any:
    """Create and initialize the task with a stored identity.

    Args:
        identity: identity as `TaskIdentity.to_json` returns it.
        options: further arguments of the task class, such as its storage.

    Raises:
        StateMismatch: another version of the task is installed.
    """
    task_class = load(identity["task"])
    if task_class.version != identity["version"]:
        raise StateMismatch(
            f"a task continues with the version that it began with, {identity['task']} {identity['version']}, but "
            f"{task_class.version} is installed; use the Rekindle that made it"
        )
    task = task_class(identity["env"], seed=identity["seed"], **options)
    return task.init(start=identity.get("start"), **unflatten(identity["hyperparameters"]))


@cache
def _made(maker: str, name: str) -> type[Any]:
    """Return the task class that an adapter makes of a name."""
    module, _, function = maker.partition(":")
    try:
        task_class: type[Any] = getattr(
            importlib.import_module(f".{module.removeprefix('.tasks.')}", __package__), function
        )(name)
    except ImportError as error:  # it needs an extra that is not installed
        raise ValueError(str(error)) from error
    return task_class


@cache
def _in_module(path: str) -> type[Any]:
    """Return the task class at ``package.module:Class``, with this text as its name.

    Stored trials refer to the class by that name.
    """
    module, _, attribute = path.partition(":")
    if module == "__main__" or "<" in attribute:
        raise ValueError(
            f"a task that another process trains must be at the top level of a module, but {path} was defined in a "
            "notebook, at a prompt or inside a function; write it into a file, and import it from there"
        )
    try:
        offered = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # importing runs the module's code
        problem_text = str(error) if isinstance(error, ImportError | AttributeError | ValueError) else repr(error)
        lost = isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]
        cure = "; run this in the folder that has it, or add that to PYTHONPATH" if lost else ""
        if module.endswith(".py") or "/" in module:
            problem_text = "it names a file, not a module"
            cure = f"; write {PurePath(module).stem}:{attribute}, in the folder of the file"
        raise ValueError(f"the task {path!r} cannot be imported: {problem_text}{cure}") from error
    if not isinstance(offered, type):
        cure = "; decorate the function with @rekindle.task(...)" if callable(offered) else ""
        raise ValueError(f"a task must be a class derived from rekindle.Task, but {path} is {offered!r}{cure}")
    named: type[Any] = offered
    if getattr(offered, "name", None) != path:
        named = type(offered.__name__, (offered,), {"name": path, "__module__": module, "__doc__": offered.__doc__})
    if problem := _problem(path, named, path):
        raise PluginError(problem)
    return named


def _problem(name: str, offered: Any, origin: str) -> str:
    """Return why an object is no task of this name, or ""."""
    learner = getattr(offered, "learner", None)
    if not (isinstance(offered, type) and isinstance(learner, type) and issubclass(learner, BaseLearner)):
        return f"a task must be a class derived from rekindle.Task, but {origin} is {offered!r}"
    if (declared := getattr(offered, "name", None)) != name:
        return (
            f"a task must be offered under its own name, by which stored trials find it, but {origin} is "
            f"named {declared!r} and offered as {name!r}; make them equal"
        )
    return ""


TASKS = Registry("task", "rekindle.tasks", {**ALGORITHMS, **CHOICES, **INSTRUMENTS}, _problem)
