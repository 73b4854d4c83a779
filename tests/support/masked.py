"""A CartPole that hides its velocities, so the right action depends on earlier observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv


class Positions(gym.ObservationWrapper[Any, Any, Any]):
    """Observations of the cart's position and the pole's angle, scaled to order 1."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.array([observation[0], 5 * observation[2]], np.float32)


def make() -> gym.Env[Any, Any]:
    """Return the environment without its time limit."""
    return Positions(CartPoleEnv())


MASKED = "masked:MaskedCartPole-v0"
if "MaskedCartPole-v0" not in gym.registry:
    gym.register("MaskedCartPole-v0", make, max_episode_steps=500)
