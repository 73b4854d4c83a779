"""Quasi-Monte Carlo: trial n takes point n of a scrambled Sobol' sequence.

Optuna's sampler counts its points in an attribute of the study and takes the first trial's hyperparameters as the whole
space. Here the trial's number selects the point, and the point has a coordinate for every hyperparameter of the
searched space; those that do not apply to a trial are not used.

Optuna determines the index of a point in its private method ``_find_sample_id`` only, which is overridden here; if a
version of Optuna stops calling it, the test of the spread over the grid fails.
"""

from __future__ import annotations

import optuna
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import QMCSampler
from optuna.trial import FrozenTrial

from ...spaces.drivers.to_optuna import distributions
from ...tasks.rng import streams
from ..errors import BadConfig
from ..study.config import Config
from .draw import Draw

CHOICES = 5  # first version of Optuna whose points have coordinates for choices


class QMC(QMCSampler):
    """Quasi-Monte Carlo sampler of a single trial.

    Another attempt uses the same index in another scrambling.
    """

    def __init__(self, config: Config, number: int, attempt: int):
        seed = streams.seed_of(config.seed, "suggest", "qmc", attempt)
        super().__init__(scramble=True, seed=seed, warn_independent_sampling=False)
        self.number = number
        self._distributions = distributions(config.searched)

    @classmethod
    def of(cls, draw: Draw) -> QMC:
        """Return the sampler of a draw."""
        return cls(draw.config, draw.number, draw.attempt)

    @staticmethod
    def check(config: Config) -> None:
        """Raise BadConfig if Optuna is too old for points with choices."""
        choices = any(isinstance(x, CategoricalDistribution) for x in distributions(config.searched).values())
        if choices and int(optuna.__version__.partition(".")[0]) < CHOICES:
            raise BadConfig(
                f"sampler qmc needs Optuna {CHOICES} or newer for choices, but this is {optuna.__version__}: "
                "pip install -U optuna"
            )

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the distributions of all searched hyperparameters."""
        return self._distributions

    def _find_sample_id(self, study: Study, search_space: dict[str, BaseDistribution] | None = None) -> int:
        return self.number
