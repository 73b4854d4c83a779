"""CMA-ES (Hansen 2016, arXiv:1604.00772), replayed from the trials' results at each suggestion.

Optuna's sampler stores its pickled state with a trial and counts only trials that were drawn from the current
distribution. Here the optimizer is told all populations again, in the order of the trials. The suggestion is thus a
function of the results alone, and a promoted trial moves up in its population. Trials that were not drawn from the
distribution are told as well; see Hansen (2011), arXiv:1110.4181, on injected solutions.

Categorical hyperparameters, and those that not all trials have, are drawn at random, as by Optuna's sampler.

Optuna has no public mapping from hyperparameters to a unit cube. This module uses the private
``_SearchSpaceTransform``, which Optuna's own samplers share; if a version of Optuna moves it, the import fails.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna import Study
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import intersection_search_space
from optuna.trial import FrozenTrial, TrialState

from .draw import Draw, violation

if TYPE_CHECKING:
    from cmaes import CMA

SIGMA = 1 / 6  # initial deviation, as a fraction of each range; Optuna's default


class CMAES(BaseSampler):
    """CMA-ES sampler of a single trial.

    Args:
        seed: seed of the sampler.
        population_size: minimum population size; never less than Hansen's 4 + 3 ln d for d hyperparameters.
    """

    def __init__(self, seed: int, population_size: int):
        self.seed, self.population_size = seed, population_size
        self._random = RandomSampler(seed=seed)

    @classmethod
    def of(cls, draw: Draw) -> CMAES:
        """Return the sampler of a draw."""
        return cls(draw.seed, draw.config.generation)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the numerical hyperparameters that all complete trials have."""
        space = intersection_search_space(_complete(study))
        return {
            name: distribution
            for name, distribution in space.items()
            if not distribution.single() and not isinstance(distribution, CategoricalDistribution)
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw from the distribution updated with all whole populations."""
        if not search_space:
            return {}
        cube = _SearchSpaceTransform(search_space, transform_0_1=True)
        optimizer = self._optimizer(cube)
        trials, size = _complete(study), optimizer.population_size
        for start in range(0, len(trials) - size + 1, size):
            population = trials[start : start + size]
            # CMA-ES uses only the order. Trials with more epochs rank first, then feasible ones, then higher scores.
            ranked = sorted(population, key=_worth, reverse=True)
            optimizer.tell([(cube.transform(trial.params), float(rank)) for rank, trial in enumerate(ranked)])
        return cube.untransform(optimizer.ask())

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw at random."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _optimizer(self, cube: _SearchSpaceTransform) -> CMA:
        from cmaes import CMA

        dimensions = len(cube.bounds)
        return CMA(
            mean=np.full(dimensions, 0.5),
            sigma=SIGMA,
            bounds=cube.bounds,
            n_max_resampling=10 * dimensions,
            seed=self.seed,
            population_size=max(self.population_size, 4 + math.floor(3 * math.log(dimensions))),
        )


def _worth(trial: FrozenTrial) -> tuple[Any, ...]:
    return trial.last_step or 0, -violation(trial.system_attrs), trial.value, -trial.number


def _complete(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
