"""Environments whose module draws values when it is imported."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from faulty_envs import Drift

SCALES = {"global": random.random() + np.random.random(), "entropy": np.random.default_rng().random()}


class Scaled(Drift):
    """Observations are scaled by a value that was drawn once, by the generator that `source` names."""

    def __init__(self, source: str) -> None:
        self.source = source

    def show(self) -> Any:
        return super().show() * np.float32(SCALES[self.source])


gym.register("drawn/Scaled-v0", Scaled)
