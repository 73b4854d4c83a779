"""Searched spaces of studies, and hyperparameters known in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...spaces import Space, SpaceError, flatten, unflatten, with_priors
from ...spaces.errors import near
from ...spaces.values import REQUIRED, Nested, Value
from ..errors import BadConfig
from ..methods import scheduling
from .config import Config
from .presets import preset_values

if TYPE_CHECKING:
    from ...tasks.envs import EnvSpec
    from ...tasks.task import Task


def open_space(algorithm: type[Task], env: EnvSpec, fixed: Mapping[str, Any], priors: Mapping[str, str]) -> Space:
    """Return the space of all open hyperparameters and those with a prior."""
    for name in algorithm.learner.without_effect(env, flatten(fixed)):
        if name in priors:
            raise BadConfig(f"{algorithm.name}: {name} changes nothing in {env.id}, but has a prior; leave it out")
    open = with_priors(algorithm.learner.open_space(env, fixed), priors)
    searched = open.searched()
    for row in open.rows:
        if row.path in priors and row.path not in searched.flat():
            raise BadConfig(
                f"the prior of {row.path} needs {' and '.join(map(str, row.conditions))}, which does not hold; "
                "set that, or search it too"
            )
    return searched


def defaults_except(space: Space, search: Sequence[str]) -> Nested:
    """Return the defaults of all hyperparameters except those to search.

    Raises:
        SpaceError: a hyperparameter to search is not in the space, has only one value, or does not apply with the
            defaults of the others.
    """
    flat = space.flat()
    for name in search:
        if name not in flat:
            inside = next((f"; it is a group, of which one is {one}" for one in flat if one.startswith(f"{name}.")), "")
            raise SpaceError(f"search: {name!r} is not an open hyperparameter{inside or near(name, flat)}")
        if name not in space.unfixed():
            raise SpaceError(
                f"search: {name} has one value here, {flat[name].expects}; leave it out, or give it a prior"
            )
    values: dict[str, Value] = {}
    for row in space.rows:
        decided = [condition for condition in row.conditions if condition.path not in search]
        if not (applies := all(condition.holds(values) for condition in decided)) and row.path in search:
            raise SpaceError(
                f"search: {row.path} applies only when {' and '.join(map(str, row.conditions))}, which is "
                "not the default; fix that, or search it too"
            )
        if applies and row.path not in search and (default := row.dimension.default) is not REQUIRED:
            values[row.path] = default
    return unflatten(values)


def known_values(config: Config, algorithm: type[Task], hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the searched values of a known configuration, by dotted name.

    Args:
        config: configuration of the study.
        algorithm: class of its tasks.
        hyperparameters: values by dotted name; the others have their defaults.

    Raises:
        BadConfig: a value is not in the searched space, or contradicts a fixed one.
    """
    from ...spaces.drivers.to_optuna import params  # imports optuna

    space, chosen = config.searched, {name: hyperparameters[name] for name in config.open if name in hyperparameters}
    try:
        values = flatten(space.decide(lambda path, dimension: chosen.get(path, dimension.default)))
        params(space, values)
    except SpaceError as error:
        raise BadConfig(f"a known configuration must be in the searched space, but {error}") from None
    identity = config.identity(algorithm, {**config.fixed, **values})
    complete = algorithm.named(identity.algorithm, flatten(identity.hyperparameters))
    for name, value in hyperparameters.items():
        if name not in complete and name not in (dimensions := config.space_in(algorithm).flat()):
            raise BadConfig(
                f"a known configuration names hyperparameters of {config.task}, but got {name}{near(name, dimensions)}"
            )
        if name not in complete or complete[name] != value:
            raise BadConfig(
                f"a known configuration has the study's fixed values, but its {name} is {value!r} and the study's is "
                f"{complete.get(name)!r}; --set {name}={value!r}, or search it"
            )
    return values


def with_preset(
    algorithm: type[Task],
    env: Any,
    preset: str,
    fixed: Mapping[str, Any],
    priors: Mapping[str, str],
    search: Sequence[str],
    scheduler: str,
) -> tuple[Nested, dict[str, Any]]:
    """Return a preset's fixed hyperparameters, and its trial of the search.

    Args:
        algorithm: class of the task.
        env: environment, as `Task` takes it.
        preset: name of the preset. A value that the study does not search, or that lies outside its range, becomes
            fixed; the other values are the first trial.
        fixed: hyperparameters that the user fixes, which the preset does not change.
        priors: the user's priors by dotted name.
        search: hyperparameters to search, by dotted name; empty for all.
        scheduler: name of the scheduler.

    Raises:
        BadConfig: a value lies outside a range that the user gives.
    """
    from ...spaces.drivers.to_optuna import params  # imports optuna
    from ...tasks.envs import EnvSpec  # imports gymnasium

    fixed_values = flatten(fixed)
    values = {name: value for name, value in preset_values(algorithm.name, preset).items() if name not in fixed_values}
    space, first = open_space(algorithm, EnvSpec.of(env), fixed, priors), dict[str, Any]()
    for name, value in values.items():
        dimension = space.unfixed().get(name)
        if dimension is None or (search and name not in [*search, *priors]):
            continue
        if scheduling(scheduler).population and dimension.structural:
            continue
        try:
            params(space, {name: value})
        except SpaceError as error:
            if name in search or name in priors:
                raise BadConfig(
                    f"--preset {preset} tries its values first, so the search must include them, but {error}; widen "
                    f"the range of {name}, replace it by --set {name}={value!r}, or leave --preset out"
                ) from None
            continue
        first[name] = value
    return unflatten(fixed_values | {name: value for name, value in values.items() if name not in first}), first
