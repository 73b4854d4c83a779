"""Classes that a user of Stable-Baselines3 writes."""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor


class Tanhless(ActorCriticPolicy):
    """A policy with rectifiers."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{**options, "net_arch": [24], "activation_fn": torch.nn.ReLU})


class Wide(A2C):
    """A2C with that policy."""

    def __init__(self, policy: Any, env: Any, **options: Any):
        super().__init__(Tanhless, env, **options)


class Features(BaseFeaturesExtractor):
    """Features of a vector: one layer."""

    def __init__(self, observation_space: Any, features_dim: int = 8):
        super().__init__(observation_space, features_dim)
        self.layer = torch.nn.Linear(observation_space.shape[0], features_dim)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(observations))


class CountingBuffer(ReplayBuffer):
    """A replay buffer whose batches depend on the number of transitions."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.count = 0

    def add(self, *arguments: Any, **options: Any) -> None:
        self.count += 1
        super().add(*arguments, **options)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        return super().sample(batch_size + self.count % 3, env)


class Tree(ReplayBuffer):
    """A replay buffer with something that is no data."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.tree = object()


def nothing() -> None:
    """Be no algorithm."""
