"""Quasi-Monte Carlo: trial n is point n of a Sobol' sequence.

The sequence is scrambled and spans the searched space.

Optuna's sampler counts its points in an attribute of the study, and takes the first trial's hyperparameters for all
that exist. Here a point belongs to a number, and it has a coordinate for every hyperparameter of the space; those that
do not apply to a trial stay unused.

The number of a point is given by overriding Optuna's private ``_find_sample_id``, its only place for it;
if a version of Optuna asks another method, the test of the spread over the grid fails.
"""

from __future__ import annotations

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import QMCSampler
from optuna.trial import FrozenTrial

from ...spaces.drivers.to_optuna import distributions
from ...tasks.rng import streams
from ..study.config import Config


class QMC(QMCSampler):
    """The sampler of one trial.

    Another attempt is the same point of another scrambling.
    """

    def __init__(self, config: Config, number: int, attempt: int):
        seed = streams.seed_of(config.seed, "suggest", "qmc", attempt)
        super().__init__(scramble=True, seed=seed, warn_independent_sampling=False)
        self.number = number
        self._distributions = distributions(config.searched)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of all searched hyperparameters."""
        return self._distributions

    def _find_sample_id(self, study: Study, search_space: dict[str, BaseDistribution]) -> int:
        return self.number
