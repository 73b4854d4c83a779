"""The algorithm as a hyperparameter of a study.

The space holds those of all algorithms that can learn in an environment, each under its name and on the condition that
it is chosen: `algorithm`, `ppo.gamma`, `sac.optimizer.lr`. A trial is the very task that its algorithm makes of its own
hyperparameters, with the same uid and the same bits, so `rekindle train ppo` continues it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Never, cast

from ...spaces import Space, categorical, flatten
from ...spaces.values import under
from ..envs import EnvSpec
from ..errors import UnsupportedSpace
from ..identity import EnvLike, TaskIdentity
from ..learner import Learner
from ..registry import load
from ..task import Task

ALGORITHMS = ("ppo", "sac", "dqn", "td3", "tqc", "crossq", "qrdqn", "pqn", "trpo", "ars")
ALGORITHM, HELP = "algorithm", "Algorithm that learns; its hyperparameters follow, under its name."


def _space(spaces: Mapping[str, Space]) -> Space:
    """Return the space of a choice among algorithms, the first by default."""
    choice = categorical(*spaces, default=next(iter(spaces)), structural=True, help=HELP)
    return Space(algorithm=choice, **{name: _conditional(space, name) for name, space in spaces.items()})


def _conditional(space: Space, name: str) -> Space:
    """Return a space whose dimensions apply only to an algorithm."""
    return Space(
        **{
            key: _conditional(entry, name)
            if isinstance(entry, Space)
            else replace(entry, when={**entry.when, ALGORITHM: name})
            for key, entry in space.items()
        }
    )


class AutoLearner(Learner):
    """Space of all algorithms; their own learners train."""

    hyperparameters = _space({name: load(name).learner.hyperparameters for name in ALGORITHMS})

    @classmethod
    def space_in(cls, env: EnvSpec) -> Space:
        return _space_in(env)

    @classmethod
    def without_effect(cls, env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
        names = []
        for name in algorithms_in(env):
            names += [f"{name}.{path}" for path in load(name).learner.without_effect(env, under(name, fixed))]
        return names


@lru_cache(maxsize=64)
def algorithms_in(env: EnvSpec) -> tuple[str, ...]:
    """Return the names of the algorithms that can learn in an environment.

    Raises:
        UnsupportedSpace: none can, or there is no environment.
    """
    AutoLearner.check_presence(env)
    names, refusals = [], []
    for name in ALGORITHMS:
        try:
            TaskIdentity.of(load(name), env, 0, {})
        except UnsupportedSpace as error:
            refusals.append(str(error))
        else:
            names.append(name)
    if not names:
        raise UnsupportedSpace(f"{env.id}: one of {', '.join(ALGORITHMS)} must learn there, but {'; '.join(refusals)}")
    return tuple(names)


@lru_cache(maxsize=64)
def _space_in(env: EnvSpec) -> Space:
    return _space({name: load(name).learner.space_in(env) for name in algorithms_in(env)})


class Auto(Task):
    """Choice of an algorithm, whose tasks are the trials of a study."""

    name = "auto"
    learner = AutoLearner
    version = sum(load(name).version for name in ALGORITHMS)  # rises with that of any algorithm

    @classmethod
    def chosen(cls, env: EnvLike, values: Mapping[str, Any]) -> tuple[type[Task], dict[str, Any]]:
        flat = flatten(values)
        name = flat.get(ALGORITHM) or algorithms_in(EnvSpec.of(env))[0]
        return cast("type[Task]", load(name)), under(name, flat)

    @classmethod
    def starts(cls, env: EnvLike) -> list[dict[str, Any]]:
        return [{ALGORITHM: name} for name in algorithms_in(EnvSpec.of(env))]

    @classmethod
    def named(cls, algorithm: str, values: Mapping[str, Any]) -> dict[str, Any]:
        return {ALGORITHM: algorithm, **{f"{algorithm}.{path}": value for path, value in values.items()}}

    def init(self, *positional: Any, **hyperparameters: Any) -> Never:
        """Refuse: a single training names its algorithm.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{self}: auto chooses an algorithm in a study (rekindle tune auto ENV), but a single training has one; "
            f"name it: {', '.join(ALGORITHMS)}"
        )
