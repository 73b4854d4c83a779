"""Vector environments for tests, of Gymnasium's own class; ``vector/own_pools:Name-v0`` imports them."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from own_envs import BoxWalk, Brittle, CameraWalk, DictWalk

STEPS, MADE = 12, itertools.count()  # steps of an episode; counter of pools


class Told(BoxWalk):
    """A walk that can start beside 0, and whose `info` has a word, and a number at even steps only."""

    steps, start = 0, 0.0

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**how)
        self.steps, self.position = 0, self.position + self.start
        return self.show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        self.steps += 1
        even = {} if self.steps % 2 else {"even": self.steps, "inner": {"negative": -self.steps}}
        return obs, reward, terminated, truncated, {"word": "none", **even}


def make(num_envs: int, walk: type[gym.Env[Any, Any]], varied: str = "") -> SyncVectorEnv:
    """Return environments, which differ by pool or by their number if ``varied`` says so."""
    pool = SyncVectorEnv([lambda: gym.wrappers.TimeLimit(walk(), STEPS)] * num_envs)
    if varied:
        pool.set_attr("start", float(next(MADE) if varied == "pools" else num_envs))
    return pool


class Count(gym.Env[Any, Any]):
    """Shows the number of its step, which no reset draws."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.float32([0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.float32([self.steps]), 1.0, False, self.steps >= 5, {"count": self.steps}


class Silent(SyncVectorEnv):
    """Does not give the last observations of episodes."""

    def step(self, actions: Any) -> Any:
        *result, info = super().step(actions)
        return *result, {name: value for name, value in info.items() if "final_obs" not in name}


class Odd(SyncVectorEnv):
    """Returns other rewards, ends or observations, or raises, from a step on that no self-test reaches."""

    wrong, steps = "", 0

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        self.steps += 1
        if self.steps > 600:
            reward = {"none": [None] * self.num_envs, "column": reward[:, None]}.get(self.wrong, reward)
            terminated = np.array(["False"] * self.num_envs) if self.wrong == "text" else terminated
            obs = obs[:1] if self.wrong == "few" else obs
            if self.wrong == "raises":
                raise OSError("gone")
        return obs, reward, terminated, truncated, info


def odd(num_envs: int, wrong: str) -> Odd:
    """Return environments that return something else late."""
    pool = Odd([Count] * num_envs)
    pool.wrong = wrong
    return pool


class Differentiates(SyncVectorEnv):
    """Computes a gradient by torch in every step, and raises without gradients."""

    def step(self, actions: Any) -> Any:
        torch.ones(1, requires_grad=True).sum().backward()
        return super().step(actions)


class Clings(SyncVectorEnv):
    """Its close never returns."""

    def close(self, **how: Any) -> None:
        threading.Event().wait()


gym.register("Clings-v0", vector_entry_point=lambda num_envs: Clings([Count] * num_envs))
gym.register("Differentiates-v0", vector_entry_point=lambda num_envs: Differentiates([Count] * num_envs))
gym.register("Odd-v0", vector_entry_point=odd)


class Maskless(SyncVectorEnv):
    """Resets all environments, whatever the mask says."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)


def counting(num_envs: int, mode: str, pool_class: type[SyncVectorEnv] = SyncVectorEnv, says: str | None = "") -> Any:
    """Return environments with an autoreset mode, of which their metadata may say something else."""
    walks = [partial(gym.wrappers.TimeLimit, BoxWalk(), 7 + n) for n in range(num_envs)]
    pool = pool_class(walks if pool_class is Maskless else [Count] * num_envs, autoreset_mode=AutoresetMode[mode])
    pool.metadata = {**pool.metadata, "autoreset_mode": AutoresetMode[says or mode]}
    if says is None:
        del pool.metadata["autoreset_mode"]
    return pool


for mode in ("NEXT_STEP", "SAME_STEP", "DISABLED"):
    gym.register(f"Count{mode}-v0", vector_entry_point=counting, kwargs={"mode": mode})
OTHERS: dict[str, dict[str, Any]] = {
    "Silent": {"mode": "SAME_STEP", "pool_class": Silent},
    "Lying": {"mode": "SAME_STEP", "pool_class": Silent, "says": "NEXT_STEP"},
    "Undeclared": {"mode": "SAME_STEP", "pool_class": Silent, "says": None},
    "Maskless": {"mode": "NEXT_STEP", "pool_class": Maskless},
}
for name, how in OTHERS.items():
    gym.register(f"{name}-v0", vector_entry_point=counting, kwargs=how)

for name, kwargs in {
    "BoxPool": {"walk": BoxWalk},
    "DictPool": {"walk": DictWalk},
    "CameraPool": {"walk": CameraWalk},
    "BrittlePool": {"walk": partial(Brittle, "once")},
    "ToldPool": {"walk": Told},
    "OtherPool": {"walk": Told, "varied": "pools"},
    "CrowdedPool": {"walk": Told, "varied": "neighbours"},
}.items():
    if f"{name}-v0" not in gym.registry:
        gym.register(f"{name}-v0", vector_entry_point=make, kwargs=kwargs)
