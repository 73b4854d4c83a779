"""Configurations of Orion's algorithms under which hunts finish."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ...spaces import Space
from ...spaces.dimension import Maybe
from ...spaces.ranges import Fidelity
from .trial import whole

from orion.algo.base import algo_factory  # isort: skip
from orion.algo.pbt.pbt import compute_fidelities  # isort: skip
from orion.core.utils.module_import import ImportOptional  # isort: skip

_POPULATIONS = {"pbt", "pb2"}
_MULTI_FIDELITY = {"asha", "hyperband", "evolutiones", "bohb", "dehb", *_POPULATIONS}
_LOGUNIFORM = re.compile(r"^loguniform\((\S+), (\S+), precision=None.*")


def algorithm_config(algorithm: str | Mapping[str, Any], seed: int, epochs: int | Fidelity) -> dict[str, Any]:
    """Return Orion's configuration of the algorithm, with a seed.

    Orion's Hyperband does not start without one.
    """
    config = {algorithm: {}} if isinstance(algorithm, str) else dict(algorithm)
    if len(config) != 1:
        raise ValueError(f"an algorithm is a name or {{name: {{option: value}}}}, but got {algorithm!r}")
    [(name, options)] = config.items()
    classes = {key: algorithm for key, algorithm in algo_factory.get_classes().items() if _is_installed(algorithm)}
    if name.lower() not in classes:
        close = [f"; did you mean {match}?" for match in get_close_matches(name.lower(), classes, 1)]
        raise ValueError(
            f"Orion has no algorithm {name!r} installed; it has {', '.join(sorted(classes))}{''.join(close)}"
        )
    parameters = inspect.signature(classes[name.lower()].__init__).parameters
    if name.lower() in _MULTI_FIDELITY and not isinstance(epochs, Fidelity):
        raise ValueError(f"{name} needs to choose the epochs; give epochs=fidelity(1, 27, 3), for example")
    if unknown := sorted(set(options or {}) - set(parameters)):
        raise ValueError(f"Orion's {name} takes {', '.join(list(parameters)[2:])}, but got {', '.join(unknown)}")
    defaults = {"seed": seed} if "seed" in parameters else {}
    if is_population(config) and isinstance(epochs, Fidelity):
        defaults["generations"] = _generations(epochs)
    return {name: {**defaults, **(options or {})}}


def _is_installed(algorithm: type) -> bool:
    """Return whether one of Orion's classes is a usable algorithm.

    Wrappers of algorithms are not, nor are algorithms whose optional packages are missing.
    """
    optional = vars(sys.modules[algorithm.__module__]).values()
    missing = any(isinstance(package, ImportOptional) and package.failed for package in optional)
    return not missing and not algorithm.__module__.startswith("orion.core.")  # the module of wrappers


def is_population(algorithm: Mapping[str, Any]) -> bool:
    """Return whether the algorithm's trials branch from each other's states."""
    return bool(_POPULATIONS.intersection(map(str.lower, algorithm)))


def is_grid(algorithm: Mapping[str, Any]) -> bool:
    """Return whether the algorithm is a grid search."""
    return "gridsearch" in map(str.lower, algorithm)


def _generations(epochs: Fidelity) -> int:
    """Return the number of generations for Orion's PBT.

    It is the largest, up to ten, with which every generation has at least one epoch.
    """
    for count in range(10, 1, -1):
        ends = [whole(end) for end in compute_fidelities(count, epochs.low, epochs.high, epochs.base)]
        if len(set(ends)) == len(ends):
            return count
    return 1


def changeable(space: Space, search: Sequence[str] | None) -> list[str]:
    """Return the hyperparameters that may change while a task trains.

    A population searches only these.

    Args:
        space: hyperparameters of the task.
        search: hyperparameters to search, by dotted name; None for all that may change.

    Raises:
        ValueError: a hyperparameter to search may not change.
    """
    flat = space.flat()
    decided = {name for name, dimension in flat.items() if dimension.structural or isinstance(dimension, Maybe)}
    names = [name for name in space.unfixed() if name not in decided]
    for name in search or ():
        if name in decided:
            raise ValueError(
                f"a population changes hyperparameters while it trains, but {name} decides shapes or loop counts, or "
                f"whether something is there at all; fix it, or search it with another algorithm. What may change: "
                f"{', '.join(names)}"
            )
    return names if search is None else list(search)


def grid_priors(priors: Mapping[str, str]) -> dict[str, str]:
    """Return priors whose ends a grid of Orion's can reach.

    Orion computes the ends of a grid as exp(log(end)), which rounding may put outside the prior's range.
    """
    return {name: _LOGUNIFORM.sub(_reachable, prior) for name, prior in priors.items()}


def _reachable(prior: re.Match[str]) -> str:
    low, high = map(float, prior.groups())
    while math.exp(math.log(low)) < low:
        low = math.nextafter(low, high)
    while math.exp(math.log(high)) > high:
        high = math.nextafter(high, low)
    return f"loguniform({low!r}, {high!r}, precision=None)"  # without the default, which may now be out of range
