"""The part of a learner that signals and cloning see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Protocol

import torch
from torch import Tensor

from ..envs import Envs, EnvSpec
from ..experience.normalizers import ObservationNormalizer
from ..networks.actor_critic import ActorCritic
from ..rng.streams import Bits


class SignalHost(Protocol):
    """An on-policy learner of P members, before and after each of its updates."""

    env: EnvSpec
    envs: Envs
    seeds: list[int]
    device: torch.device
    hp: SimpleNamespace
    policy: ActorCritic
    obs_normalizer: ObservationNormalizer | None
    members: int
    env_steps: int
    iterations: int

    def keys(self, purpose: str) -> Bits:
        """Return the members' keys (P,) of the random stream with this purpose."""

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the action distribution's parameters and v(s), (P, B), with gradients."""

    def minibatches(self, batch: Mapping[str, Tensor], hp: SimpleNamespace, keys: Bits) -> Iterator[dict[str, Tensor]]:
        """Yield `num_minibatches` parts of a batch in random order, `update_epochs` times."""
