"""Lookup of tasks by name: built-in ones and those of entry points.

Algorithms are imported on first use; this module imports neither them nor `Task`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..spaces import unflatten
from ..spaces.choices import offers
from ..spaces.errors import near
from .base_learner import BaseLearner
from .errors import StateMismatch

ALGORITHMS = {
    "a2c": ".algorithms.a2c:A2C",
    "digits": ".examples.digits:Digits",
    "dqn": ".algorithms.dqn.dqn:DQN",
    "ppo": ".algorithms.ppo:PPO",
    "ppo2": ".algorithms.ppo2:PPO2",
    "sac": ".algorithms.continuous.sac:SAC",
    "surrogate": ".algorithms.surrogate:Surrogate",
    "svpg": ".algorithms.svpg:SVPG",
    "svpg-ppo": ".algorithms.svpg:SVPGPPO",
    "svpg-ppo2": ".algorithms.svpg:SVPGPPO2",
    "tabular": ".algorithms.tabular:Tabular",
}
ENTRY_POINTS = "rekindle.tasks"  # entry-point group in which packages offer tasks: name = "package.module:Class"


def names() -> list[str]:
    """Return the names of all tasks."""
    return sorted({*ALGORITHMS, *(point.name for point in offers(ENTRY_POINTS))})


def load(name: str) -> type[Any]:
    """Return the task class with this name.

    The name may also be ``package.module:Class``, for a class that no entry point offers.

    Raises:
        ValueError: no task has the name (the message suggests similar ones), or it cannot be imported, or a package's
            offer is faulty.
    """
    points = offers(ENTRY_POINTS).select(name=name)
    given = [f"{point.value} of {point.dist.name if point.dist else 'an unknown package'}" for point in points]
    if len(given) + (name in ALGORITHMS) > 1:
        offered_by = [*given, "Rekindle's own"] if name in ALGORITHMS else given
        raise ValueError(
            f"tasks must have names of their own, but {name!r} is {' and '.join(sorted(offered_by))}; give "
            "yours another name, in its class and among its package's entry points"
        )
    if ":" in name and not given:
        return _in_module(name)
    if name in ALGORITHMS:
        module, attribute = ALGORITHMS[name].split(":")
        try:
            task: type[Any] = getattr(importlib.import_module(module, __package__), attribute)
        except ImportError as error:  # the task needs an extra that is not installed
            raise ValueError(str(error)) from error
        return task
    for point, offer in zip(points, given, strict=True):
        try:
            offered = point.load()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"the task {name!r}, {offer}, cannot be imported: {error}") from error
        return _checked(offered, name, offer)
    raise ValueError(f"a task must be one of {', '.join(names())}, but got {name!r}{near(name.lower(), names())}")


def task_of(identity: Mapping[str, Any], **options: Any) -> Any:
    """Create and initialize the task with a stored identity.

    Args:
        identity: identity as `TaskIdentity.to_json` returns it.
        options: further arguments of the task class, such as its storage.

    Raises:
        StateMismatch: another version of the task is installed.
    """
    task = load(identity["task"])
    if task.version != identity["version"]:
        raise StateMismatch(
            f"a task continues with the version that it began with, {identity['task']} {identity['version']}, but "
            f"{task.version} is installed; use the Rekindle that made it"
        )
    made = task(identity["env"], seed=identity["seed"], **options)
    return made.init(start=identity.get("start"), **unflatten(identity["hyperparameters"]))


@cache
def _in_module(place: str) -> type[Any]:
    """Return the task class at ``package.module:Class``, with this text as its name.

    Stored trials refer to the class by that name.
    """
    module, _, attribute = place.partition(":")
    try:
        offered = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the task {place!r} cannot be imported: {error}") from error
    if not isinstance(offered, type):
        raise ValueError(f"a task must be a class derived from rekindle.Task, but {place} is {offered!r}")
    named = type(offered.__name__, (offered,), {"name": place, "__module__": module, "__doc__": offered.__doc__})
    return _checked(named, place, place)


def _checked(offered: Any, name: str, offer: str) -> type[Any]:
    """Return the task class that a package offers.

    Raises:
        ValueError: it is not a task class of this name.
    """
    learner = getattr(offered, "learner", None)
    if not (isinstance(offered, type) and isinstance(learner, type) and issubclass(learner, BaseLearner)):
        raise ValueError(f"a task must be a class derived from rekindle.Task, but {offer} is {offered!r}")
    if (own := getattr(offered, "name", None)) != name:
        raise ValueError(
            f"a task must be offered under its own name, by which stored trials find it, but {offer} is "
            f"named {own!r} and offered as {name!r}; make them equal"
        )
    return offered
