"""CartPoles that hang forever at a step: asleep, or in C code that holds Python's global lock.

Each file in the folder of `VARIABLE` makes one process hang; its name says when and how.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
from gated import is_of_training
from gymnasium.envs.classic_control import CartPoleEnv

VARIABLE = "REKINDLE_TESTS_HANGS"


def hang(folder: Path, *ways: str, after: int = 60) -> None:
    """Make one process hang in each of these ways, after a number of its own steps.

    Only steps of training count. If ways are joined by +, the
    processes that replace the first one hang in the other ways, at their first step.
    """
    folder.mkdir(exist_ok=True)
    for number, way in enumerate(ways):
        (folder / f"{number},{after},{way}").touch()


def sleep_in_c(seconds: int) -> None:
    """Sleep while holding Python's global lock, without handling signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(seconds)


def waiting() -> list[Path]:
    """Return the files that make processes hang; fast, since every step calls it."""
    folder = os.environ.get(VARIABLE)
    try:
        return [Path(folder, name) for name in os.listdir(folder) if name[0].isdecimal()] if folder else []
    except FileNotFoundError:
        return []


WAYS = {"asleep": time.sleep, "in C": sleep_in_c}


class Hanging(CartPoleEnv):
    """A CartPole that takes a file, if there is one, and hangs as it says."""

    made = 0  # steps of this process in training
    trains = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.trains = is_of_training(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        Hanging.made += self.trains
        for path in waiting():
            _, after, way = path.name.split(",")
            if Hanging.made > int(after):
                with suppress(FileNotFoundError):  # another process was faster
                    path.rename(path.with_name(f"taken-{os.getpid()}"))
                    way, _, then = way.partition("+")
                    if then:
                        hang(path.parent, then, after=0)
                    WAYS[way](100_000)
        return super().step(action)


gym.register("Hanging-v0", entry_point=Hanging, max_episode_steps=30)
