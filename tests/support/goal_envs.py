"""Environments with goals, in the form of Gymnasium-Robotics."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

LENGTH = 20
PLANE = spaces.Box(-1, 1, (2,), np.float32)


class Sides(gym.Env[dict[str, NDArray[np.float32]], np.int64]):
    """A question: on which side of a point is the goal? Each right answer gives a reward of 1."""

    observation_space = spaces.Dict({"achieved_goal": PLANE, "desired_goal": PLANE, "observation": PLANE})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        angle = self.np_random.uniform(0, 2 * np.pi)
        self.goal = np.array([np.cos(angle), np.sin(angle)], np.float32)
        self.steps = 0
        return self.show(), {}

    def show(self) -> dict[str, NDArray[np.float32]]:
        self.point = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"achieved_goal": np.zeros(2, np.float32), "desired_goal": self.goal, "observation": self.point}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = (self.point @ self.goal > 0) == (action == 1)
        self.steps += 1
        return self.show(), float(right), self.steps == LENGTH, False, {}


class Reach(Sides):
    """The same question, answered with a number."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(np.int64(action[0] > 0))


class Rooms(Sides):
    """The same, with further observations of many kinds, and one of four rooms as the goal."""

    observation_space = spaces.Dict(
        {
            "around": spaces.Dict({"flags": spaces.MultiBinary(2), "side": spaces.Discrete(3)}),
            "desired_goal": spaces.Discrete(4),
            "map": spaces.Box(-1, 1, (2, 2), np.float32),
        }
    )

    def show(self) -> Any:
        super().show()
        around = {"flags": np.zeros(2, np.int8), "side": np.int64(1)}
        room = np.int64(2 * (self.goal[0] > 0) + (self.goal[1] > 0))
        return {"around": around, "desired_goal": room, "map": np.full((2, 2), 0.5, np.float32)}


GOAL_BOX = spaces.Box(-2, 2, (2,), np.float64)


class Point(gym.Env[Any, Any]):
    """A point in a square that is to be moved to a goal, in the form of Gymnasium-Robotics' GoalEnv."""

    action_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)
    observation_space = spaces.Dict({"achieved_goal": GOAL_BOX, "desired_goal": GOAL_BOX, "observation": GOAL_BOX})

    def __init__(self, ends: bool = False, dense: bool = False) -> None:
        """Args: `ends` terminates an episode at its goal; `dense` rewards are negative distances."""
        self.ends, self.dense = ends, dense

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self.show(), {}

    def show(self) -> Any:
        return {"achieved_goal": self.place.copy(), "desired_goal": self.goal.copy(), "observation": self.place.copy()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + 0.25 * np.asarray(action, np.float64), -2, 2)
        goals = self.place, self.goal, {}
        reward, ended = self.compute_reward(*goals), self.compute_terminated(*goals)
        return self.show(), reward, ended, False, {"is_success": float(self.compute_reward(*goals) == 0)}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        distance = np.linalg.norm(achieved - desired, axis=-1)
        return -distance if self.dense else -(distance > 0.25).astype(np.float32)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return self.ends and bool(np.linalg.norm(achieved - desired) <= 0.25)  # of one goal alone


class Bits(gym.Env[Any, Any]):
    """Bits to be flipped until they are those of the goal: Andrychowicz et al. (2017), section 3.1."""

    def __init__(self, size: int = 4) -> None:
        bits = spaces.MultiBinary(size)
        self.action_space = spaces.Discrete(size)
        self.observation_space = spaces.Dict({"achieved_goal": bits, "desired_goal": bits, "observation": bits})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(0, 2, (2, int(self.action_space.n)), np.int8)  # type: ignore[attr-defined]
        return self.show(), {}

    def show(self) -> Any:
        return {"achieved_goal": self.bits.copy(), "desired_goal": self.goal, "observation": self.bits.copy()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.bits[action] ^= 1
        reward = float(self.compute_reward(self.bits, self.goal, {}))
        return self.show(), reward, reward == 0, False, {"is_success": float(reward == 0)}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.where((achieved == desired).all(-1), 0.0, -1.0)


class Unlike(Point):
    """Steps give twice the reward of the function."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return obs, 2 * reward, *rest


class TwoRewards(Point):
    """The function gives two numbers for a pair of goals, steps one."""

    stepping = False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.stepping = True
        result = super().step(action)
        self.stepping = False
        return result

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        reward = super().compute_reward(achieved, desired, info)
        return reward if self.stepping else np.array([reward, reward])


class Upset(Point):
    """Rewards raise an error in the meantime."""

    upset = False

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        if Upset.upset:
            raise ValueError("the solver is upset")
        return super().compute_reward(achieved, desired, info)


limited = {"Point-v0": (Point, 12), "Bits-v0": (Bits, 6), "Unlike-v0": (Unlike, 12), "TwoRewards-v0": (TwoRewards, 12)}
limited |= {"Upset-v0": (Upset, 12)}
for name, (made, limit) in limited.items():
    if name not in gym.registry:
        gym.register(name, made, max_episode_steps=limit)
for name, made in {"Sides-v0": Sides, "Reach-v0": Reach, "Rooms-v0": Rooms}.items():
    if name not in gym.registry:
        gym.register(name, made)
