"""Learners that play episodes, and environments that suit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ..base_learner import BaseLearner
from ..envs import EnvSpec, spaces_of
from ..envs.base.observations import Observations
from ..errors import UnsupportedSpace
from ..learner import Learner


def playing(learner: BaseLearner) -> Learner:
    """Return the learner if it plays episodes, else raise UnsupportedSpace.

    It is a `Learner`, or one of another library with the same methods.
    """
    if not hasattr(learner, "actor"):
        raise UnsupportedSpace(f"{learner.algorithm()} has no episodes; evaluate() measures its {learner.objective}")
    return cast("Learner", learner)


def plays_episodes(learner: type[BaseLearner]) -> bool:
    """Return whether learners of a class are measured in episodes."""
    return hasattr(learner, "actor") and (learner.score is Learner.score or not issubclass(learner, Learner))


def other_env(env: EnvSpec, other: str | Mapping[str, Any] | EnvSpec, subject: str) -> EnvSpec:
    """Return another environment's spec, checked to suit a trained policy.

    Args:
        env: environment that the policy was trained in.
        other: another environment; a mapping without an id changes entries of `env`.
        subject: name of the task in error messages.

    Raises:
        UnsupportedSpace: its observations or actions differ from those of `env`.
    """
    if not env:
        raise UnsupportedSpace(f"{subject} learns without an environment, but got {other!r}; leave it out")
    whole = {**env.to_json(), **other} if isinstance(other, Mapping) and "id" not in other else other
    spec = EnvSpec.of(whole)
    need, have = spaces_of(env), spaces_of(spec)
    forms = [(obs.kind, obs.shape) for obs in (Observations(spaces.observation, subject) for spaces in (need, have))]
    for part, equal in (("observation", forms[0] == forms[1]), ("action", need.action == have.action)):
        if not equal:
            raise UnsupportedSpace(
                f"{subject} is evaluated in environments of the same {part} space, {getattr(need, part)}, but "
                f"{spec.id} has {getattr(have, part)}; name another environment, or add a wrapper that makes them equal"
            )
    return spec
