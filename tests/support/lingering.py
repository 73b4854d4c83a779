"""CartPoles that leave a process behind, as a daemon does that changes its limits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
from rekindle.tasks.runtime.progress import marked

VARIABLE = "REKINDLE_TESTS_LEFT"  # a file of which each line is the pid of such a process
SECONDS = 300  # that it lives


class Lingering(CartPoleEnv):
    """A CartPole beside which a process runs, with the streams of this one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if name := os.environ.get(VARIABLE):
            with Path(name).open("a") as file, marked(""):
                file.write(f"{subprocess.Popen(['sleep', str(SECONDS)]).pid}\n")


gym.register("Lingering-v0", entry_point=Lingering, max_episode_steps=30)
