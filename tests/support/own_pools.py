"""Vector environments that only the tests have, of Gymnasium's own class; ``vector/own_pools:Name-v0`` imports them."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv
from own_envs import BoxWalk, Brittle, CameraWalk, DictWalk

STEPS, MADE = 12, itertools.count()  # of an episode; pools so far


class Told(BoxWalk):
    """A walk that begins beside 0 if told so, and whose `info` has a number at even steps only, and a word."""

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
    """Return environments; each pool or each number of neighbours is another one if ``varied`` says so."""
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
