"""Rekindle's environments in the form that models of Stable-Baselines3 step."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from ..envs import EnvSpec, spaces_of
from ..envs.base.envs import Envs
from ..envs.base.joined import sizes_of
from ..envs.base.masks import mask_in


class TaskVecEnv(VecEnv):
    """Rekindle's environments as Stable-Baselines3 sees them.

    Attributes:
        begun: whether their episodes have just begun, so that `reset` leaves them alone.
    """

    def __init__(self, envs: Envs, spec: EnvSpec):
        space = spaces_of(spec)
        low, high = (0, 255) if envs.obs_kind == "image" else (-np.inf, np.inf)
        dtype = np.uint8 if envs.obs_kind == "image" else np.float32
        observation = gym.spaces.Box(low, high, envs.obs_shape, dtype)
        self.envs, self.begun = envs, True
        self.returns, self.lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        super().__init__(envs.num_envs, observation, _from_zero(space.action))

    def reset(self) -> np.ndarray:
        if not self.begun:
            self.envs.reset()
        self.begun, self.returns[:], self.lengths[:] = True, 0.0, 0
        return self.envs.obs[0].copy()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = as_taken(actions, self.action_space)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        self.begun = False
        result = self.envs.step(self.actions[None])
        terminated, truncated, rewards = result.terminated[0], result.truncated[0], result.reward[0].copy()
        done = terminated | truncated
        self.returns += rewards
        self.lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in done]
        for i in np.flatnonzero(done):
            infos[i] = {
                "terminal_observation": result.next_obs[0, i].copy(),
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                "episode": {"r": float(self.returns[i]), "l": int(self.lengths[i])},
            }
        self.returns[done], self.lengths[done] = 0.0, 0
        return self.envs.obs[0].copy(), rewards, done.copy(), infos

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("the environments of a task have no attributes to set")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        if method_name == "action_masks" and (columns := mask_in(self.envs.obs_shape)):
            return [*(self.envs.obs[0][:, columns] > 0.5)]
        raise NotImplementedError(f"the environments of a task have no method {method_name}")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [True] * self.num_envs  # each reports its episodes, as a Monitor does


def as_taken(actions: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """Return a model's actions as environments take them; bits are integers."""
    return np.asarray(actions, np.int8 if isinstance(space, gym.spaces.MultiBinary) else None)


def _from_zero(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return an action space of one axis, whose choices count from 0."""
    if isinstance(space, gym.spaces.Discrete):
        return gym.spaces.Discrete(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.MultiDiscrete(sizes_of(space))
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary(len(sizes_of(space)))
    return copy.deepcopy(space)
