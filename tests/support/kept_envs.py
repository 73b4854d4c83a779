"""Environments whose class draws a value once, and keeps it."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from time import time as clock
from typing import Any

import gymnasium as gym
import numpy as np
from faulty_envs import Drift


class Kept(Drift):
    """Observations are scaled by a value that the class keeps, drawn in the first call of the method `at`."""

    scale: float | None = None

    def __init__(self, source: str, at: str) -> None:
        self.source, self.at = source, at
        self.generator = np.random.default_rng()  # of each instance, without an effect
        self.draw("constructor")

    def draw(self, at: str) -> None:
        if at == "reset" and self.at == "every reset":
            type(self).scale = None
        if self.at in (at, "each", f"every {at}") and (self.scale is None or self.at == "each"):
            draw = {
                "entropy": random.SystemRandom().random,
                "process": lambda: os.getpid() % 1000 / 1000,
                "counter": lambda: time.perf_counter() % 1,
                "global": np.random.random,
            }[self.source]
            type(self).scale = draw() if self.at != "each" else 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.draw("reset")
        return super().reset(seed=seed)

    def show(self) -> Any:
        return super().show() * np.float32(self.scale)


class Clinging(Kept):
    """Its close never returns."""

    def close(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                threading.Event().wait()


class Dated(Drift):
    """Depends on the hour, by a function that the module imports by name."""

    def push(self, action: Any) -> float:
        return super().push(action) + clock() // 3600 % 24


gym.register("drawn/Kept-v0", Kept)
gym.register("drawn/Dated-v0", Dated)
gym.register("drawn/Clinging-v0", Clinging)
