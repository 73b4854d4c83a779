"""Vector environments for tests, of Gymnasium's own class; ``vector/own_pools:Name-v0`` imports them."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv
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


for name, own in {
    "BoxPool": {"walk": BoxWalk},
    "DictPool": {"walk": DictWalk},
    "CameraPool": {"walk": CameraWalk},
    "BrittlePool": {"walk": partial(Brittle, "once")},
    "ToldPool": {"walk": Told},
    "OtherPool": {"walk": Told, "varied": "pools"},
    "CrowdedPool": {"walk": Told, "varied": "neighbours"},
}.items():
    if f"{name}-v0" not in gym.registry:
        gym.register(f"{name}-v0", vector_entry_point=make, kwargs=own)
