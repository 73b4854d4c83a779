"""Environments that forbid actions, and fail at a forbidden one."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ACTIONS: dict[str, Any] = {
    "discrete": spaces.Discrete(5, start=2),
    "rows": spaces.MultiDiscrete([3, 4]),
    "grid": spaces.MultiDiscrete([[3, 4], [2, 3]], start=[[0, 1], [-1, 0]]),
    "bits": spaces.MultiBinary(3),
}


class Forbidding(gym.Env[Any, Any]):
    """Draws a mask at each step; the reward is the number of the lowest allowed value that is taken.

    With `broken`, the mask is empty after that many steps, in episodes whose seed is at least `late`. `told` says where
    the mask stands: "observation", "info" or "method"; these two tell `given` instead, if anything is, "none" for None.
    """

    def __init__(
        self, actions: str = "discrete", told: str = "observation", broken: int = 0, late: int = 0, given: Any = ()
    ) -> None:
        self.given = {"mask": None} if given == "none" else {"mask": given} if given else {}
        self.action_space, self.told, self.broken, self.late = ACTIONS[actions], told, broken, late
        self.sizes = {"discrete": [5], "rows": [3, 4], "grid": [3, 4, 2, 3], "bits": [2, 2, 2]}[actions]
        numbers = spaces.Box(-1, 1, (2,), np.float32)
        masks = spaces.Box(0, 1, (sum(self.sizes),), np.int8)
        both = spaces.Dict({"action_mask": masks, "numbers": numbers})
        self.observation_space = both if told == "observation" else numbers

    def draw(self) -> None:
        parts = []
        for n in self.sizes:
            part = self.np_random.random(n) < 0.4
            part[self.np_random.integers(n)] = True
            parts.append(part)
        self.mask = np.concatenate(parts).astype(np.int8)
        if self.broken and self.time == self.broken and self.trained >= self.late:
            self.mask[:] = 0

    def seen(self) -> tuple[Any, dict[str, Any]]:
        numbers = np.array([self.time / 10, 0.5], np.float32)
        info = {"action_mask": self.given.get("mask", self.mask.copy())} if self.told == "info" else {}
        return ({"action_mask": self.mask.copy(), "numbers": numbers} if self.told == "observation" else numbers), info

    def action_masks(self) -> Any:
        if self.told != "method":
            raise AssertionError("only told by method")
        mask: Any = self.given.get("mask", self.mask.astype(bool))
        return mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.trained = seed or 0
        self.time = 0
        self.draw()
        return self.seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        first = getattr(self.action_space, "start", 0)
        chosen = np.asarray(action).reshape(-1) - np.asarray(first).reshape(-1)
        groups = np.split(self.mask, np.cumsum(self.sizes)[:-1])
        assert all(group[a] for group, a in zip(groups, chosen, strict=True)), f"{action} is forbidden by {self.mask}"
        reward = float(sum(a == np.flatnonzero(group)[0] for group, a in zip(groups, chosen, strict=True)))
        self.time += 1
        self.draw()
        return *self.seen()[:1], reward, self.time == 9, False, self.seen()[1]


class Silent(Forbidding):
    """The same without a method."""

    action_masks: ClassVar[Any] = property(lambda self: (_ for _ in ()).throw(AttributeError("action_masks")))


class Wrong(gym.Env[Any, Any]):
    """A mask of another size than the actions have."""

    observation_space: ClassVar = spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": spaces.Box(0, 1, (1,))})
    action_space: ClassVar = spaces.Discrete(3)


class InParts(Silent):
    """Tells a mask for each choice in its observation."""

    def __init__(self) -> None:
        super().__init__("rows")
        masks = spaces.Tuple([spaces.MultiBinary(n) for n in self.sizes])
        self.observation_space = spaces.Dict({"action_mask": masks, "numbers": self.observation_space["numbers"]})

    def seen(self) -> tuple[Any, dict[str, Any]]:
        numbers = super().seen()[0]["numbers"]
        return {"action_mask": tuple(np.split(self.mask, np.cumsum(self.sizes)[:-1])), "numbers": numbers}, {}


gym.register("InParts-v0", InParts)
gym.register("Forbidding-v0", Silent, max_episode_steps=50)
gym.register("ForbiddingByMethod-v0", Forbidding, kwargs={"told": "method"})
gym.register("WrongMask-v0", Wrong)
