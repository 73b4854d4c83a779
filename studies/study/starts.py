"""Common start of a study's trials: a policy, demonstrations or both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from ...spaces import flatten, unflatten
from ...tasks.task import Task
from ...tasks.warm_start import WarmStart, hyperparameters_of
from ..errors import BadConfig
from ..storage.store import Store
from ..storage.stored_policies import put_policy
from .config import Config

OF_POLICY = ("model.", "normalize_obs", "use_sde")  # hyperparameters that decide which arrays a policy has


def check_one_environment(config: Config) -> None:
    """Raise BadConfig if a study with a common start has several environments."""
    if len(config.environments) > 1:
        raise BadConfig(
            f"a warm start or demonstrations need one environment, but the study has {len(config.environments)}; "
            "leave them out, or name one environment"
        )


def _searched_shapes(config: Config, algorithm: type[Task]) -> list[str]:
    """Return the searched hyperparameters that decide a policy's arrays."""
    shapes = config.space_in(algorithm).flat()
    return [name for name in config.open if name.startswith(OF_POLICY) and shapes[name].structural]


def decided(
    config: Config, algorithm: type[Task], hyperparameters: Mapping[str, Any], named: Collection[str]
) -> dict[str, Any]:
    """Return the searched hyperparameters that a warm start decides.

    The values are by dotted name.

    Args:
        config: configuration of the study.
        algorithm: class of its tasks.
        hyperparameters: nested, of the task that the policy is from.
        named: dotted names that the user asks to search.
    """
    values = flatten(hyperparameters)
    return {name: values[name] for name in _searched_shapes(config, algorithm) if name in values and name not in named}


def check_shapes(config: Config, algorithm: type[Task]) -> None:
    """Raise BadConfig if hyperparameters are searched that decide a policy's arrays."""
    if searched := _searched_shapes(config, algorithm):
        raise BadConfig(
            f"a warm start decides the parts of the policy, but {', '.join(searched)} is searched; fix it to "
            f"what the policy has: --set {searched[0]}=..."
        )


def store_start(store: Store, task: Task, values: Mapping[str, Any], name: str) -> str:
    """Store the policy of a warm start; return its digest."""
    task.init(**values)
    return put_policy(store, task, name)


def started(
    store: Store,
    config: Config,
    algorithm: type[Task],
    warm_start: Any,
    demonstrations: Any,
    remake: Callable[[Mapping[str, Any]], Config],
    named: Collection[str],
) -> Config:
    """Return the configuration of a study whose trials have a common start.

    Args:
        store: store that keeps the start, so that its source is not needed again.
        config: configuration without a start.
        algorithm: class of its tasks.
        warm_start: see `Task`.
        demonstrations: see `Task`.
        remake: function of values by dotted name that returns the configuration with them fixed.
        named: dotted names that the user asks to search.

    Raises:
        BadConfig: the shape of the networks is searched, or the study has several environments.
    """
    check_one_environment(config)
    if warm_start is not None:
        warm_start = warm_start if isinstance(warm_start, WarmStart) else WarmStart(warm_start)
        if values := decided(config, algorithm, hyperparameters_of(warm_start.source), named):
            config = remake(values)
        check_shapes(config, algorithm)
    task = algorithm(config.env, seed=config.seed, warm_start=warm_start, demonstrations=demonstrations)
    name = warm_start.name if warm_start else "demonstrations"
    digest = store_start(store, task, unflatten(config.fixed), name)
    return replace(config, options={**config.options, "warm_start": digest})
