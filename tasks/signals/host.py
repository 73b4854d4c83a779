"""The interface of a learner that signals and cloning use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Protocol

import torch

from ..envs import Envs, EnvSpec
from ..experience.rollout import Agent
from ..rng.streams import Bits


class SignalHost(Protocol):
    """A learner of P members, as signals and cloning see it."""

    env: EnvSpec
    envs: Envs
    seeds: list[int]
    device: torch.device
    hp: SimpleNamespace
    agent: Agent
    members: int
    env_steps: int
    iterations: int

    def keys(self, purpose: str) -> Bits:
        """Return the members' random streams (P,) for this purpose."""
