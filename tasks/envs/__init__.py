"""Environments whose state is part of a task's: ``make_envs`` makes them, ``Envs`` says what they offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .base import Envs, Episodes, Step
from .classic import ClassicEnvs, is_classic
from .gym import GymEnvs
from .spec import EnvSpec, EnvSpecError

__all__ = ["EnvSpec", "EnvSpecError", "Envs", "Episodes", "Step", "make_envs"]


def make_envs(
    spec: str | Mapping[str, Any] | EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str = "train"
) -> Envs:
    """P = len(seeds) members with ``num_envs`` environments each; another ``purpose`` has other random numbers."""
    spec = EnvSpec.of(spec)
    return (ClassicEnvs if is_classic(spec) else GymEnvs)(spec, seeds, num_envs, purpose)
