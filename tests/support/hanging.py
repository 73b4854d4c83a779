"""CartPoles that stand still for ever at a step: asleep, or in C code that holds Python's lock.

A file in the folder of `VARIABLE` names how many more processes hang, and in which way.
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
from gymnasium.envs.classic_control import CartPoleEnv

VARIABLE = "REKINDLE_TESTS_HANGS"


def hang(folder: Path, *ways: str, after: int = 230) -> None:
    """Have one process hang in each of these ways, after so many steps of its own.

    A worker makes 170 before it trains, to see that states can be restored. Where ways are joined by +, the processes
    that take the place of the first one hang in the others, at their first step.
    """
    folder.mkdir(exist_ok=True)
    for number, way in enumerate(ways):
        (folder / f"{number},{after},{way}").touch()


def sleep_in_c(seconds: int) -> None:
    """Sleep with Python's lock, and deaf to signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(seconds)


def waiting() -> list[Path]:
    """What says that a process is to hang; asked at each step, so in a microsecond or two."""
    folder = os.environ.get(VARIABLE)
    try:
        return [Path(folder, name) for name in os.listdir(folder) if name[0].isdecimal()] if folder else []
    except FileNotFoundError:
        return []


WAYS = {"asleep": time.sleep, "in C": sleep_in_c}


class Hanging(CartPoleEnv):
    """A CartPole that hangs if a file says so, which it takes."""

    made = 0  # by this process

    def step(self, action: Any) -> Any:
        Hanging.made += 1
        for path in waiting():
            _, after, way = path.name.split(",")
            if Hanging.made > int(after):
                with suppress(FileNotFoundError):  # another process was quicker
                    path.rename(path.with_name(f"taken-{os.getpid()}"))
                    way, _, then = way.partition("+")
                    if then:
                        hang(path.parent, then, after=0)
                    WAYS[way](100_000)
        return super().step(action)


gym.register("Hanging-v0", entry_point=Hanging, max_episode_steps=30)
