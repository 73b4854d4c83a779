"""Optuna's samplers that need nothing but a seed: random, and Gaussian processes."""

from __future__ import annotations

from optuna.samplers import BaseSampler, GPSampler, RandomSampler

from .draw import Draw


class Random:
    """Independent draws."""

    @staticmethod
    def of(draw: Draw) -> BaseSampler:
        """Return the sampler of a draw."""
        return RandomSampler(seed=draw.seed)


class GaussianProcessSampler:
    """Bayesian optimization by a Gaussian process, after a generation of random draws."""

    @staticmethod
    def of(draw: Draw) -> BaseSampler:
        """Return the sampler of a draw."""
        return GPSampler(seed=draw.seed, n_startup_trials=draw.config.generation, **draw.constraints)
