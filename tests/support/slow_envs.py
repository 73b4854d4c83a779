"""CartPoles that simulate slowly, and count their steps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

VARIABLE = "REKINDLE_TESTS_STEPS"  # folder in which each process has a file with one byte per step
STEP = 0.005  # seconds


class Slow(CartPoleEnv):
    """A CartPole whose steps take some milliseconds if they are counted."""

    def step(self, action: Any) -> Any:
        if folder := os.environ.get(VARIABLE):
            with (Path(folder) / str(os.getpid())).open("ab") as file:
                file.write(b".")
            time.sleep(STEP)
        return super().step(action)


gym.register("Slow-v0", entry_point=Slow, max_episode_steps=30)
