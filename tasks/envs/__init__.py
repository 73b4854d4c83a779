"""Environments whose state is part of a task's: ``make_envs`` makes them, ``Envs`` says what they offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .base import Envs, Episodes, Step
from .classic.envs import ClassicEnvs, is_classic
from .gym.envs import GymEnvs
from .gym.make import Spaces
from .joined import Joined
from .lookup import spaces_of
from .spec import EnvSpec, EnvSpecError

__all__ = ["EnvSpec", "EnvSpecError", "Envs", "Episodes", "Joined", "Spaces", "Step", "make_envs", "spaces_of"]


def make_envs(
    spec: str | Mapping[str, Any] | EnvSpec,
    seeds: Sequence[int],
    num_envs: int,
    purpose: str = "train",
    processes: int = 0,
) -> Envs:
    """P = len(seeds) members with ``num_envs`` environments each; another ``purpose`` has other random numbers.

    They are stepped in this process, or by so many ``processes`` each its share; EnvPool's are by so many threads, and
    classic control is computed all at once. That changes no result.
    """
    spec = EnvSpec.of(spec)
    if is_classic(spec):
        return ClassicEnvs(spec, seeds, num_envs, purpose)
    return GymEnvs(spec, seeds, num_envs, purpose, processes)
