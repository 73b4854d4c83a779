"""Environments for tests; ``own_envs:Name-v0`` imports this module, which registers them."""

from __future__ import annotations

import builtins
import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env[Any, Any]):
    """A random walk that draws noise at every step, with given observation and action spaces."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action
        self.position = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, 2)
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        push = np.sum(np.asarray(action, np.float64)) / 8
        self.position = self.position + push * self.np_random.normal(0, 1, 2)
        return self.show(), float(self.position[0]), bool(np.abs(self.position).max() > 3), False, {}

    def show(self) -> Any:
        return self.position.astype(np.float32)


BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class DictWalk(Walk):
    """Observations in a Dict within a Dict, and actions that start at 1."""

    def __init__(self) -> None:
        inner = spaces.Dict({"side": spaces.Discrete(2, start=-1), "flags": spaces.MultiBinary(2)})
        super().__init__(spaces.Dict({"position": BOX, "inner": inner}), spaces.Discrete(3, start=1))

    def show(self) -> Any:
        positive = self.position > 0
        return {
            "position": self.position.astype(np.float32),
            "inner": {"side": np.int64(positive[0]) - 1, "flags": positive.astype(np.int8)},
        }


class BoxWalk(Walk):
    """Actions that are unbounded on one side."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Box(np.array([-1, -np.inf], np.float32), np.array([2, np.inf], np.float32)))


class IntegerWalk(Walk):
    """Actions that are integers."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Box(np.array([-3, 0]), np.array([2, 200]), dtype=np.int16))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        self.position = self.position + action / (2, 200) * self.np_random.normal(0, 1, 2)
        return self.show(), float(action[0]) - abs(int(action[1]) - 150) / 50, False, False, {}


class RowsWalk(Walk):
    """MultiDiscrete actions."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.MultiDiscrete([3, 4], start=[1, -1]))


class GridWalk(Walk):
    """MultiDiscrete actions of two axes; flat ones have the same numbers in a row."""

    def __init__(self, flat: bool = False) -> None:
        sizes, first = np.array([[3, 4, 2], [2, 5, 3]]), np.array([[1, -1, 0], [0, 2, 0]])
        sizes, first = (x.reshape(-1) if flat else x for x in (sizes, first))
        super().__init__(BOX, spaces.MultiDiscrete(sizes, start=first))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return obs, reward + float(np.arange(6) @ action.reshape(-1)), *rest  # type: ignore[return-value]


class BitsWalk(Walk):
    """MultiBinary actions."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.MultiBinary((2, 2)))


class ImageWalk(Walk):
    """Images."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (5, 6, 3), np.uint8), spaces.Discrete(2))

    def show(self) -> Any:
        return np.full((5, 6, 3), abs(self.position[0]) * 50 % 256, np.uint8)


class PictureWalk(Walk):
    """Images large enough for a convolution: a bright square at the walk's position."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Discrete(2))

    def show(self) -> Any:
        picture = np.zeros((36, 36, 1), np.uint8)
        row, column = (int(np.clip(x * 5 + 16, 0, 32)) for x in self.position)
        picture[row : row + 4, column : column + 4] = 255
        return picture


class CameraWalk(Walk):
    """Two cameras of different sizes, with a position and a side."""

    def __init__(self, box: bool = False, place: str = "at") -> None:
        self.place = place
        sides = spaces.Tuple((spaces.Box(0, 255, (5, 6, 3), np.uint8), spaces.Discrete(2)))
        observation = spaces.Dict({"camera": spaces.Box(0, 255, (7, 5), np.uint8), "side": sides, place: BOX})
        super().__init__(observation, spaces.Box(-1, 1, (1,), np.float32) if box else spaces.Discrete(2))

    def show(self) -> Any:
        camera, side = np.zeros((7, 5), np.uint8), np.zeros((5, 6, 3), np.uint8)
        row, column = (int(np.clip(x + 2, 0, 4)) for x in self.position)
        camera[row : row + 3, column] = 255
        side[row, column] = (10, 20, 30)
        return {"camera": camera, "side": (side, np.int64(self.position[0] > 0)), self.place: super().show()}


class Square(gym.Env[Any, Any]):
    """A bright square whose column gives the right action, in 16 steps of an episode."""

    def __init__(self, side: int = 12, box: bool = False) -> None:
        self.observation_space = spaces.Box(0, 255, (side, side, 1), np.uint8)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if box else spaces.Discrete(2)
        self.side, self.steps, self.place = side, 0, np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        side = float(self.place[1])
        right = -abs(float(action[0]) - side) if self.action_space.shape else (1.0 if (side > 0) == action else -1.0)
        return self.show(), right, self.steps == 16, False, {}

    def show(self) -> Any:
        self.place = self.np_random.uniform(-1, 1, 2)
        picture = np.zeros((self.side, self.side, 1), np.uint8)
        third = self.side // 3
        row, column = (int((x + 1) / 2 * (self.side - third) + 0.5) for x in self.place)
        picture[row : row + third, column : column + third] = 255
        return picture


class SequenceWalk(Walk):
    """An observation that is not a number."""

    def __init__(self) -> None:
        said = spaces.Tuple([spaces.Sequence(spaces.Discrete(2))])
        super().__init__(spaces.Dict({"at": BOX, "said": said}), spaces.Discrete(2))

    def show(self) -> Any:
        return {"at": self.position.astype(np.float32), "said": ((1,),)}


class TextWalk(Walk):
    """An observation with a mission, as in MiniGrid."""

    def __init__(self) -> None:
        super().__init__(spaces.Dict({"at": BOX, "mission": spaces.Text(20)}), spaces.Discrete(2))

    def show(self) -> Any:
        return {"at": self.position.astype(np.float32), "mission": "go left" if self.position[0] > 0 else "go right"}


class VectorReward(Walk):
    """A reward of two parts: the position, and a price of each step."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Discrete(2))

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, np.array([reward, -1.0]), terminated, truncated, info


class GraphActionWalk(Walk):
    """An action that is not a number."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Dict({"push": spaces.Text(2)}))


class HybridWalk(Walk):
    """Actions with numbers and choices: a push has the intended effect only with the right choice."""

    def __init__(self) -> None:
        push = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 4], np.float32))
        rest = spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1, 1, (), np.float64)])
        super().__init__(BOX, spaces.Dict({"mode": spaces.Discrete(2), "push": push, "rest": rest}))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        way = 1 if action["mode"] == 1 else -1
        push, size = float(action["push"][0]) * way, float(action["rest"][0])
        self.position = self.position * 0.9 + 0.1 * self.np_random.normal(0, 1, 2) + np.array([push, 0]) / 10
        reward = push - 0.25 * (float(action["push"][1]) - 3) ** 2 - (size != 2) - float(action["rest"][1]) ** 2
        return self.show(), reward, bool(np.abs(self.position).max() > 3), False, {}


class BranchWalk(Walk):
    """Several choices in a Tuple, without numbers."""

    def __init__(self) -> None:
        branches = [spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.MultiBinary(2)]
        super().__init__(BOX, spaces.Tuple(branches))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), (action, self.action_space)
        size = sum(float(np.sum(part)) for part in action)
        self.position = self.position + size / 16 * self.np_random.normal(0, 1, 2)
        return self.show(), float(self.position[0]) - size, bool(np.abs(self.position).max() > 3), False, {}


class LessonWalk(Walk):
    """A walk of a length set at reset, which it shows, with rewards for the direction of the action."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2))
        self.spread = self.wind = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.spread, self.wind = (float((options or {}).get(name, 0.0)) for name in ("spread", "wind"))
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position = self.position + self.wind * self.np_random.normal(0, 1, 2)
        return self.show(), float(action), bool(np.abs(self.position).max() > self.spread + 1), False, {}

    def show(self) -> Any:
        return np.array([*self.position, self.spread, self.wind], np.float32)


class Search(LessonWalk):
    """A walk with info: the cost so far, the steps, and at the end whether it went to the right."""

    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, _, _ = super().step(action)
        self.steps += 1
        info = {"cost": abs(float(self.position[0])), "count": {"steps": self.steps}, "word": "left"}
        ended = terminated or self.steps == 9
        return obs, reward, terminated, ended, info | ({"right": bool(self.position[0] > 0)} if ended else {})


class Lottery(Walk):
    """An environment that ignores its seed."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Discrete(2))
        self.luck = np.random.default_rng()

    def show(self) -> Any:
        return self.luck.uniform(size=2).astype(np.float32)


class Wheel(Walk):
    """Episodes of one step, whose reward no action changes."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Discrete(2))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.show(), float(self.np_random.normal()), True, False, {}


class Curriculum(Walk):
    """An environment that counts its episodes and shows the count."""

    episodes = 0

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def show(self) -> Any:
        return np.array([self.position[0], self.episodes], np.float32)


class Fragile(Walk):
    """An environment that fails at some step in a separate process: it raises, or is killed."""

    def __init__(self, home: int, how: str, at: int = 3) -> None:
        if how == "die at birth" and os.getpid() != home:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(BOX, spaces.Discrete(2))
        self.away, self.how, self.at, self.steps = os.getpid() != home, how, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.away and self.steps == self.at:
            if self.how != "kill":
                raise getattr(builtins, self.how)("too small a world")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def end_or_sleep(what: str) -> None:
    """End, stop or block the process."""
    if what == "terminate" and "TERMINATED" not in os.environ:
        os.environ["TERMINATED"] = "once"
        os.killpg(os.getpgrp(), signal.SIGTERM)
    if (status := {"exit": 3, "exit 0": 0}.get(what)) is not None:
        os._exit(status)
    while what == "sleep":
        time.sleep(60)


class Turning(Walk):
    """An environment whose steps do what a variable says from then on: end or block the process, or raise."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Discrete(2))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if os.environ.get("TURN") == "nan":
            return self.show(), float("nan"), False, False, {}
        turn()
        return super().step(action)


def turn() -> None:
    """Do what the variable of `Turning` says."""
    if (what := os.environ.get("TURN", "")) == "raise":
        raise ValueError("there is no fuel")
    end_or_sleep(what)


class Unclosable(Walk):
    """An environment that cannot be closed."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Discrete(2))

    def close(self) -> None:
        raise OSError("the device is gone")


class Faulty(Walk):
    """An environment with NaNs at some step, that cannot be created, or that ends or blocks its process."""

    def __init__(self, what: str = "", at: int = 3) -> None:
        end_or_sleep(what)
        if what == "file":
            raise FileNotFoundError("there is no map.txt")
        if what == "value":
            raise ValueError("a map has four corners")
        if what == "memory":
            raise TypeError("missing 1 required positional argument: 'memory_length'")
        super().__init__(BOX, spaces.Discrete(2))
        if what == "no space":
            del self.action_space
        if what == "no Gymnasium":
            self.observation_space = (2,)  # type: ignore[assignment]
        self.what, self.at, self.steps = what, at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        obs, info = super().reset(seed=seed, options=options)
        obs = obs * np.nan if (self.what, self.at) == ("observation", 0) else obs
        if self.what == "no info":
            return obs  # type: ignore[return-value]
        return obs[:1] if self.what == "shape" else obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.what == "quote":
            raise ValueError(f"no such map: {'#' * 3_000_000}")
        if self.what == "fuel":
            raise ValueError("there is no fuel")
        end_or_sleep(self.what.removesuffix(" in a step"))
        obs, reward, *ends = super().step(action)
        wrong = self.what if self.steps == self.at else ""
        if wrong == "no dict":
            return obs, reward, *ends[:2], "none"  # type: ignore[return-value]
        if wrong == "two rewards":
            return obs, np.zeros(2), *ends  # type: ignore[return-value]
        if wrong == "shape of a step":
            return obs[:1], reward, *ends
        reward = {"reward": np.nan, "huge reward": 1e39}.get(wrong, reward)
        return obs * np.nan if wrong == "observation" else obs, reward, *ends


class Brittle(Walk):
    """An environment that raises at the very first step, at those of seeds below a number, or at each."""

    began = False

    def __init__(self, when: str, below: int = 0) -> None:
        super().__init__(BOX, spaces.Discrete(2))
        self.when, self.below, self.seed = when, below, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed = seed or 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        began, Brittle.began = Brittle.began, True
        if {"once": not began, "seeds": self.seed < self.below, "always": True}[self.when]:
            raise ConnectionError(f"the simulator is gone ({self.seed})")
        return super().step(action)


class Seedless(Walk):
    """An environment whose reset does not follow Gymnasium."""

    def __init__(self) -> None:
        super().__init__(BOX, spaces.Discrete(2))

    def reset(self) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]  # on purpose
        return super().reset()


class Doubled(gym.RewardWrapper[Any, Any]):
    """Rewards multiplied by a factor."""

    def __init__(self, env: gym.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return float(reward) * self.factor


WALKS = (
    DictWalk,
    BoxWalk,
    RowsWalk,
    GridWalk,
    BitsWalk,
    ImageWalk,
    PictureWalk,
    CameraWalk,
    SequenceWalk,
    TextWalk,
    GraphActionWalk,
    HybridWalk,
)
OWN = (
    *WALKS,
    BranchWalk,
    CameraWalk,
    IntegerWalk,
    Square,
    LessonWalk,
    Search,
    Lottery,
    Wheel,
    Curriculum,
    Fragile,
    Faulty,
    Turning,
    Unclosable,
    Brittle,
    Seedless,
    VectorReward,
)
for env_class in OWN:
    if f"{env_class.__name__}-v0" not in gym.registry:
        gym.register(f"{env_class.__name__}-v0", env_class, max_episode_steps=30)
