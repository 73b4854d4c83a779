"""Samplers of a user: from global generators, from no repeatable one, early ones, and ones that know constraints."""

from __future__ import annotations

import os
import random
from typing import Any

from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial


class Independent(BaseSampler):
    """Draws between two bounds, as fractions of each range, by Python's global generator."""

    def __init__(self, low: float = 0.0, high: float = 1.0):
        self.low, self.high, self.random = low, high, RandomSampler(seed=0)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> Any:
        return {}

    def number(self) -> float:
        return random.uniform(self.low, self.high)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if not isinstance(param_distribution, FloatDistribution):
            return self.random.sample_independent(study, trial, param_name, param_distribution)
        low, high = param_distribution.low, param_distribution.high
        return low * (high / low) ** self.number() if param_distribution.log else low + (high - low) * self.number()


class Unrepeatable(Independent):
    """Draws from the operating system's generator."""

    def number(self) -> float:
        return int.from_bytes(os.urandom(4), "big") / 2**32


class Bold(TPESampler):
    """TPE that starts early."""

    def __init__(self, seed: int | None = None, startup: int = 2):
        super().__init__(seed=seed, n_startup_trials=startup)


class Wrong(Independent):
    """Draws what its argument says."""

    def __init__(self, value: Any = 7.0):
        super().__init__()
        self.value = value

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self.value == "error":
            raise ZeroDivisionError("no prior trial")
        assert self.value != "silence"
        return self.value


def not_a_sampler() -> None:
    """Be no sampler."""


class Cautious(Independent):
    """Draws the lower bounds once an earlier trial is infeasible, else the upper ones."""

    def __init__(self, constraints_func: Any = None):
        super().__init__(1.0, 1.0)
        self.excesses = constraints_func

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> Any:
        if self.excesses and any(
            max(self.excesses(earlier)) > 0 for earlier in study.trials if earlier.state.is_finished()
        ):
            self.low = self.high = 0.0
        return {}


class Demanding(Cautious):
    """Draws for studies with constraints only."""

    def __init__(self, constraints_func: Any = None):
        if constraints_func is None:
            raise ValueError("there are no constraints")
        super().__init__(constraints_func)
