"""A CartPole that stops where a test wants, so that a process can be killed at that point.

``gated:Gated-v0`` imports this module, which registers the environment.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

VARIABLE = "REKINDLE_TESTS_GATE"


class Gate:
    """A gate that, when closed, lets each process make a limited number of steps in training.

    Other steps, such as those of the environment's self-test, do not count.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        directory.mkdir(exist_ok=True)

    @property
    def limit(self) -> Path:
        return self.directory / "limit"

    def close(self, steps: int) -> None:
        written = self.directory / "written"
        written.write_text(str(steps))
        written.rename(self.limit)

    def open(self) -> None:
        self.limit.unlink()

    def waiting(self) -> set[int]:
        """Return the processes that have ever waited at the gate."""
        return {int(path.name) for path in self.directory.glob("[0-9]*")}

    def keeps(self, steps: int) -> bool:
        """Return whether a process that has made so many steps must wait."""
        try:
            return steps >= int(self.limit.read_text())
        except FileNotFoundError:
            return False


def is_of_training(seed: int | None) -> bool:
    """Return whether a reset is one of training: these seeds are even and large."""
    return seed is not None and seed % 2 == 0 and seed > 1_000_000


class Gated(CartPoleEnv):
    """A CartPole that asks at the gate before each step."""

    made = 0  # steps of this process in training
    trains = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.trains = is_of_training(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if VARIABLE in os.environ:
            gate = Gate(Path(os.environ[VARIABLE]))
            while gate.keeps(Gated.made):
                (gate.directory / str(os.getpid())).touch()
                time.sleep(0.01)
        Gated.made += self.trains
        return super().step(action)


gym.register("Gated-v0", entry_point=Gated, max_episode_steps=30)
