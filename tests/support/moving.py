"""CartPole whose constructor changes the working directory, as a simulator does that loads files from its own."""

from __future__ import annotations

import os
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Moving(CartPoleEnv):
    """A CartPole that goes to a folder."""

    def __init__(self, folder: str, **options: Any) -> None:
        os.chdir(folder)
        super().__init__(**options)


gym.register("Moving-v0", entry_point=Moving, max_episode_steps=30)
