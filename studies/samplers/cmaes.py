"""CMA-ES (Hansen 2016, arXiv:1604.00772), computed from the trials' results at each suggestion.

Optuna's sampler keeps a pickle of its state with a trial and counts only trials that were drawn from its current
distribution. Here the optimizer is told every population again: the first trials of the population's size, the next
ones, and so on. That is a function of the results alone, and a promoted trial moves up in its population. Trials that
were not drawn from the distribution are told, too: Hansen (2011), arXiv:1110.4181, on injected solutions.

A categorical, and a hyperparameter that not all trials have, is drawn at random, as by Optuna's sampler.

Optuna has no public map from hyperparameters to a cube. Its private ``_SearchSpaceTransform`` is used, which Optuna's
own samplers share; if a version of Optuna moves it, the import fails.
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

if TYPE_CHECKING:
    from cmaes import CMA

SIGMA = 1 / 6  # of the range of each hyperparameter, at first; as Optuna's sampler has it


class CMAES(BaseSampler):
    """The sampler of one trial.

    Args:
        seed: of all that is drawn.
        population_size: at least; never less than Hansen's 4 + 3 ln d for d hyperparameters.
    """

    def __init__(self, seed: int, population_size: int):
        self.seed, self.population_size = seed, population_size
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the numbers that all complete trials have."""
        space = intersection_search_space(_complete(study))
        return {
            name: distribution
            for name, distribution in space.items()
            if not distribution.single() and not isinstance(distribution, CategoricalDistribution)
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw from the distribution after all whole populations."""
        if not search_space:
            return {}
        cube = _SearchSpaceTransform(search_space, transform_0_1=True)
        optimizer = self._optimizer(cube)
        trials, size = _complete(study), optimizer.population_size
        for start in range(0, len(trials) - size + 1, size):
            population = trials[start : start + size]
            # Only the order counts to CMA-ES: of more epochs before of fewer, and among equals by score.
            ranked = sorted(population, key=lambda each: (each.last_step or 0, each.value, -each.number), reverse=True)
            optimizer.tell([(cube.transform(each.params), float(rank)) for rank, each in enumerate(ranked)])
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


def _complete(study: Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
