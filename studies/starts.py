"""Common start of a study's trials: a policy, demonstrations or both."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..spaces import flatten, unflatten
from ..tasks.checkpoint.storage import policy_uid
from ..tasks.signals.demonstrations import Demonstrations, split_start
from ..tasks.task import Task
from ..tasks.warm_start import WarmStart, hyperparameters_of
from .errors import BadConfig, UnknownStudy
from .storage.branches import Start
from .storage.store import Store
from .storage.stored_policies import NoPolicy, begun, load_policy, put_policy
from .study.config import Config

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


class Sources(NamedTuple):
    """A policy, demonstrations or both; `file` is the name of the latter."""

    policy: WarmStart | None
    demonstrations: Demonstrations | None
    file: str | None

    @property
    def noun(self) -> str:
        return "demonstration" if self.policy is None else "policy"

    @property
    def name(self) -> str:
        """Name for messages, and for finding the stored start again."""
        return " with ".join(filter(None, [self.policy.name if self.policy else "", self.file])) or self.noun


class SourceNames(NamedTuple):
    """Names of a policy and of demonstrations, as the user gives them.

    They are None for what is not given, and for objects, which have no name by which they were stored.
    """

    policy: str | None
    demonstrations: str | None

    @classmethod
    def of(cls, policy: Any, demonstrations: Any) -> SourceNames:
        """Return the names of sources that a program gives."""
        policy = (policy.name or policy.source) if isinstance(policy, WarmStart) else policy
        sources = (policy, demonstrations)
        return cls(*(str(source) if isinstance(source, str | os.PathLike) else None for source in sources))

    def __str__(self) -> str:
        return " with ".join(filter(None, self))


def source_of(warm_start: Any, name: str | None) -> WarmStart | None:
    """Return a program's warm start; None without one.

    Raises:
        NoPolicy: its file does not exist.
    """
    if warm_start is None:
        return None
    start = warm_start if isinstance(warm_start, WarmStart) else WarmStart(warm_start)
    if isinstance(start.source, Path) and not start.source.is_file():
        raise NoPolicy(f"a warm start needs its source, but there is no file {name}")
    return replace(start, name=name or start.name)


def store_start(
    store: Store, task: Task, values: Mapping[str, Any], sources: Sources, say: Callable[[str], None]
) -> str:
    """Initialize the task and store its initial policy; return the digest."""
    task.warm_start, task.demonstrations = sources.policy, sources.demonstrations
    task.init(**values)
    digest = put_policy(store, task, sources.name)
    say(f"starts from the {sources.noun} {digest[:12]} of {sources.name}: {task.load_report}")
    return digest


def stored_steps(store: Store, names: SourceNames) -> int | None:
    """Return the number of steps of stored demonstrations, if it is known."""
    digests = begun(store, *names)
    policies = [load_policy(store, policy_uid(digest), Start(policy_uid(digest), 0, digest)) for digest in digests]
    counts = {start.steps for policy in policies if (start := split_start(policy)[1]) is not None}
    return counts.pop() if len(counts) == 1 else None


def started(
    store: Store,
    name: str,
    config: Config,
    algorithm: type[Task],
    names: SourceNames,
    read: Callable[[], Sources],
    remake: Callable[[Mapping[str, Any]], Config],
    searched: Collection[str],
    say: Callable[[str], None] = lambda text: None,
) -> Config:
    """Return the configuration of a study whose trials have a common start.

    If the source is gone, the study keeps the start that it had before. Hyperparameters that decide the policy's arrays
    are fixed to those of its task.

    Args:
        store: store that keeps the start.
        name: name of the study.
        config: configuration without a start.
        algorithm: class of its tasks.
        names: names of the sources.
        read: function that reads the sources; it raises ValueError if one is gone.
        remake: function of values by dotted name that returns the configuration with them fixed.
        searched: dotted names that the user asks to search.
        say: function that takes a line for the user.

    Raises:
        BadConfig: the shape of the networks is searched, or the study has several environments.
    """
    check_one_environment(config)
    sources, digest, values = None, None, dict[str, Any]()
    try:
        sources = read()
    except ValueError as error:
        stored = _stored(store, name)
        digest = stored.options.get("warm_start") if stored else None
        if digest is None or digest not in begun(store, *names):
            raise
        assert stored is not None
        values = dict(stored.fixed)
        say(f"{error}; study {name} started from it, and resumes")
    else:
        values = {} if sources.policy is None else dict(hyperparameters_of(sources.policy.source))
    if (names.policy if sources is None else sources.policy) is not None:
        if fixed := decided(config, algorithm, values, searched):
            say(f"the warm start decides {', '.join(f'{path}={value}' for path, value in fixed.items())}; not searched")
            config = remake(fixed)
        check_shapes(config, algorithm)
    if sources is not None:
        task = algorithm(config.env, seed=config.seed)
        digest = store_start(store, task, unflatten(config.fixed), sources, say)
    return replace(config, options={**config.options, "warm_start": digest})


def _stored(store: Store, name: str) -> Config | None:
    try:
        return Config.from_json(store.study(name).config, name)
    except UnknownStudy:
        return None
