"""Environments whose state is part of a task's: see ``Envs`` for what they offer and ``make_envs`` for how to get them."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Envs, Episodes, Step
from .classic import ClassicEnvs, is_classic
from .spec import EnvSpec, EnvSpecError

__all__ = ["EnvSpec", "EnvSpecError", "Envs", "Episodes", "Step", "make_envs"]


def make_envs(spec: EnvSpec, seeds: Sequence[int], num_envs: int, purpose: str = "train") -> Envs:
    """P = len(seeds) members with ``num_envs`` environments each; another ``purpose`` has other random numbers."""
    if is_classic(spec):
        return ClassicEnvs(spec, seeds, num_envs, purpose)
    raise NotImplementedError(spec.id)
