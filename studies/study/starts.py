"""Common start of a study's trials: a policy, demonstrations or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...spaces import unflatten
from ...tasks.task import Task
from ...tasks.warm_start import WarmStart
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


def check_shapes(config: Config, algorithm: type[Task]) -> None:
    """Raise BadConfig if hyperparameters are searched that decide a policy's arrays."""
    shapes = config.space_in(algorithm).flat()
    if searched := [name for name in config.open if name.startswith(OF_POLICY) and shapes[name].structural]:
        raise BadConfig(
            f"a warm start decides the parts of the policy, but {', '.join(searched)} is searched; fix it to "
            f"what the policy has: --set {searched[0]}=..."
        )


def store_start(store: Store, task: Task, values: Mapping[str, Any], name: str) -> str:
    """Store the policy of a warm start; return its digest."""
    task.init(**values)
    return put_policy(store, task, name)


def started(store: Store, config: Config, algorithm: type[Task], warm_start: Any, demonstrations: Any) -> Config:
    """Return the configuration of a study whose trials have a common start.

    Args:
        store: store that keeps the start, so that its source is not needed again.
        config: configuration without a start.
        algorithm: class of its tasks.
        warm_start: see `Task`.
        demonstrations: see `Task`.

    Raises:
        BadConfig: the shape of the networks is searched, or the study has several environments.
    """
    check_one_environment(config)
    if warm_start is not None:
        check_shapes(config, algorithm)
        warm_start = warm_start if isinstance(warm_start, WarmStart) else WarmStart(warm_start)
    task = algorithm(config.env, seed=config.seed, warm_start=warm_start, demonstrations=demonstrations)
    name = warm_start.name if warm_start else "demonstrations"
    digest = store_start(store, task, unflatten(config.fixed), name)
    return replace(config, options={**config.options, "warm_start": digest})
