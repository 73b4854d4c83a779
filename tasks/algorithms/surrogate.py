"""Surrogate: a task whose return is a known function, to test drivers.

    return = 100 q (1 - exp(-epochs / 9)) + noise w / sqrt(epochs),   w = Σ of one standard normal number per epoch

    q = exp(-(log10(lr / 0.001))² - (log10((1 - gamma) / 0.01))² - (log2(width / 64) / 4)²)

The optimum is lr = 0.001, gamma = 0.99 and width = 64. The walk w is state, so a task that loses it, or repeats an
epoch, gets another return. An environment may be given; it is part of the identity but is never stepped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...spaces import Space, integer, log_real, near_one, ordinal, real
from ..base_learner import BaseLearner
from ..checkpoint.retention import RETURN
from ..checkpoint.state import Tree
from ..checkpoint.storage import Metrics
from ..rng import streams
from ..task import Task


class SurrogateLearner(BaseLearner):
    """P members of the surrogate."""

    hyperparameters = Space(
        lr=log_real(1e-5, 1e-1, default=1e-4),
        gamma=near_one(0.9, 0.9999, default=0.95),
        width=ordinal(16, 32, 64, 128, default=32, structural=True),
        noise=real(0.0, 10.0, default=0.0, accept=(0.0, 1e6), search=False),
        seconds=real(0.0, 1.0, default=0.0, accept=(0.0, 3600.0), search=False),  # duration of an epoch
        epoch_steps=integer(1, 10**9, default=1, structural=True, search=False),
    )

    objective, unit, needs_env, compiled = RETURN, "env_steps", None, False
    env_steps: int

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.values = [dict(member) for member in values]  # in double precision
        super().assemble(values)

    def build(self) -> None:
        self.walks = [0.0] * self.members
        self.walk_keys = self.keys("walk")

    def run_epoch(self, stop: Callable[[], bool] = lambda: False) -> list[Metrics] | None:
        if stop():
            return None
        if seconds := max(member["seconds"] for member in self.values):
            time.sleep(seconds)
        first, second = (streams.open_uniform(self.walk_keys, np.array(2 * self.epochs + k)) for k in (0, 1))
        for i, (u, v) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            self.walks[i] += math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)  # Box and Muller (1958)
        self.epochs += 1
        self.iterations += 1
        self.env_steps += int(self.values[0]["epoch_steps"])
        returns = self.score().tolist()
        return [{"env_steps": float(self.env_steps), "episode_return": value} for value in returns]

    def score(self) -> np.ndarray:
        """Return the known function for each member, (P,); see the module."""
        return np.array([self._return(i) for i in range(self.members)])

    def _return(self, member: int) -> float:
        hp, epochs = self.values[member], max(1, self.epochs)
        misses = (math.log10(hp["lr"] / 0.001), math.log10((1 - hp["gamma"]) / 0.01), math.log2(hp["width"] / 64) / 4)
        quality = math.exp(-sum(miss * miss for miss in misses))
        walk = hp["noise"] * self.walks[member] / math.sqrt(epochs)
        return 100 * quality * (1 - math.exp(-self.epochs / 9)) + walk

    def member_state(self, member: int) -> Tree:
        return {"counters": {name: getattr(self, name) for name in self.counters()}, "walk": self.walks[member]}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        for name in self.counters():
            setattr(self, name, tree["counters"][name])
        self.walks[member] = float(tree["walk"])


class Surrogate(Task):
    """A synthetic task to try out samplers, schedulers, databases and clusters."""

    name = "surrogate"
    version = 1
    learner = SurrogateLearner
