"""Classes that a user of Stable-Baselines3 writes."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
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


class Recalling(A2C):
    """Lets everything that it keeps, and an argument that it changes, decide how it learns."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.counts, self.phase, self.values = {"updates": 0}, "first", [0.5]
        self.draws, self.last = np.random.default_rng(3), deque([1.0], maxlen=3)
        self.relu = torch.nn.functional.relu

    def train(self) -> None:
        self.counts["updates"] += 1
        self.values.append(0.1 if self.phase == "first" else 0.2)
        self.last.append(self.last[0] + self.counts["updates"])
        self.phase = "later"
        self.ent_coef = 0.9 * self.ent_coef + 0.01 * float(self.draws.uniform())
        self.vf_coef = sum(self.values) / len(self.values) + 0.01 * sum(self.last)
        super().train()


class Counter:
    """An object that no state keeps."""


class Hiding(A2C):
    """Keeps an object."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.counter = Counter()
