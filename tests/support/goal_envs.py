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


for name, made in {"Sides-v0": Sides, "Reach-v0": Reach, "Rooms-v0": Rooms}.items():
    if name not in gym.registry:
        gym.register(name, made)
