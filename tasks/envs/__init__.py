"""Environments whose state is part of a task's: ``make_envs`` makes them, ``Envs`` says what they offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import gymnasium as gym

from .base import Envs, Episodes, Step
from .classic import ClassicEnvs, is_classic
from .encode import Observations
from .gym import GymEnvs
from .joined import Joined
from .make import make_env
from .spec import EnvSpec, EnvSpecError

__all__ = ["EnvSpec", "EnvSpecError", "Envs", "Episodes", "Joined", "Spaces", "Step", "make_envs", "spaces_of"]


def make_envs(
    spec: str | Mapping[str, Any] | EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str = "train"
) -> Envs:
    """P = len(seeds) members with ``num_envs`` environments each; another ``purpose`` has other random numbers."""
    spec = EnvSpec.of(spec)
    return (ClassicEnvs if is_classic(spec) else GymEnvs)(spec, seeds, num_envs, purpose)


class Spaces(NamedTuple):
    """What one environment shows and what it takes."""

    observation: gym.Space[Any]
    action: gym.Space[Any]


@lru_cache(maxsize=64)
def spaces_of(spec: EnvSpec) -> Spaces:
    """The spaces before any training; EnvSpecError if it cannot be made, UnsupportedSpace if it cannot be seen."""
    env = make_env(spec)
    spaces = Spaces(env.observation_space, env.action_space)
    env.close()
    Observations(spaces.observation, spec.id)
    return spaces
