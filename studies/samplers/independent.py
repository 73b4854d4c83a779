"""Optuna's samplers that need nothing but a seed: random, and Gaussian processes."""

from __future__ import annotations

from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler

from ...spaces.drivers.to_optuna import distributions
from ..errors import BadConfig
from ..study.config import Config
from .draw import Draw

MOST_VALUES = 10_000_000  # of a range with steps, which Optuna's Gaussian process holds in memory


class Random:
    """Independent draws."""

    @staticmethod
    def of(draw: Draw) -> BaseSampler:
        """Return the sampler of a draw."""
        return RandomSampler(seed=draw.seed)


class GaussianProcessSampler:
    """Bayesian optimization by a Gaussian process, after a generation of random draws."""

    @staticmethod
    def check(config: Config) -> None:
        """Raise BadConfig if a range has too many values."""
        for name, values in distributions(config.searched).items():
            if isinstance(values, FloatDistribution | IntDistribution) and values.step:
                number = int((values.high - values.low) / values.step) + 1
                if number > MOST_VALUES:
                    raise BadConfig(
                        f"the sampler gp holds all values of a range of whole numbers or steps, at most "
                        f"{MOST_VALUES:,}, but {name} has {number:,}; narrow it or give it a larger step (--prior), or "
                        "choose another sampler"
                    )

    @staticmethod
    def of(draw: Draw) -> BaseSampler:
        """Return the sampler of a draw."""
        return GPSampler(seed=draw.seed, n_startup_trials=draw.config.generation, **draw.constraints)
