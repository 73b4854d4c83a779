"""Fakes for several tests: an environment with known values, and a policy with fixed actions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from rekindle.tasks.experience.rollout import Rollout
from rekindle.tasks.networks.distributions import Categorical, finite
from torch import Tensor


class Corridor(gym.Env[Any, Any]):
    """A walk from place 0, or from a random place before `spread`, to place `length`, where the episode ends.

    Action 1 moves one place forward, and action 0 stays. The reward of a step is the place that it reaches. Moving
    forward all the time from place 0 gives a return of 1 + 2 + ... + length.
    """

    def __init__(self, length: int = 3, spread: int = 1) -> None:
        self.length, self.spread, self.place = length, spread, 0
        self.observation_space = spaces.Box(0, 1000, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.spread))
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += int(action)
        return self.show(), float(self.place), self.place >= self.length, False, {}

    def show(self) -> Any:
        return np.array([self.place, 1], np.float32)


class Remembering(Corridor):
    """A corridor that shows its number of episodes, so it can be restored only at the ends of epochs."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed)

    def show(self) -> Any:
        return np.array([self.place, self.episodes], np.float32)


gym.register("Remembering-v0", entry_point=Remembering, max_episode_steps=100)
gym.register("Corridor-v0", entry_point=Corridor, max_episode_steps=100)


class Told:
    """A policy for two actions that always takes the same one, for any observation and noise."""

    def __init__(self, action: int) -> None:
        self.distribution = Categorical(2)
        self.params = torch.tensor([0.0, 1e6 if action else -1e6])
        self.seen: list[Tensor] = []
        self.parameters = SimpleNamespace(vector=torch.empty(0))

    def states(self, num_envs: int) -> None:
        return None

    def action_params(self, obs: Tensor) -> Tensor:
        self.seen.append(obs.clone())
        return self.params.expand(*obs.shape[:2], 2)

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        return finite(self.distribution.sample(self.action_params(obs), noise))

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.distribution.log_prob_and_entropy(self.action_params(obs), actions)[0]


def place_value(obs: Tensor) -> Tensor:
    """Return values of 10 times the place, (P, B), for observations (P, B, 2)."""
    return 10 * obs[..., 0]


def rollout_of(learner: Any) -> Rollout:
    """Return a new rollout of an on-policy learner."""
    guidance = learner.guidance
    rollout: Rollout = guidance.scale_extrinsic(
        learner.agent.collect(learner.envs, learner.iterations, guidance.needs_next_obs)
    )
    learner.env_steps += learner.hp.num_steps * learner.hp.num_envs
    return rollout


def batch_of(learner: Any) -> dict[str, Tensor]:
    """Return a new rollout of an on-policy learner, in the form for its loss."""
    hp, guidance, rollout = learner.hp, learner.guidance, rollout_of(learner)
    batch: dict[str, Tensor] = learner.agent.advantages(rollout, hp.gamma, hp.gae_lambda)
    batch = guidance.augment_batch(batch, rollout)
    batch["advantages"] = learner.standardizer(batch["advantages"], batch.get("weights"))
    return batch
