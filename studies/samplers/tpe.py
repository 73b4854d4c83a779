"""TPE for studies in which every trial has a new sampler.

Before each suggestion, Optuna's sampler goes through all trials to find the hyperparameters that they have in common,
and caches the result. Samplers here live for one trial only, so they share the cache of their study.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial

from ..study.config import GOOD
from ..study.objectives import objectives_of
from .draw import Draw

MOST_GOOD = 25  # good trials at most; Optuna's default

_common: WeakKeyDictionary[Study, IntersectionSearchSpace] = WeakKeyDictionary()


class TPE(TPESampler):
    """Optuna's TPE with the same suggestions in less time.

    It models hyperparameters together (`multivariate`) if there is one objective, and takes running trials for bad ones
    (`constant_liar`). Both are defaults of Optuna 5, and chosen here so that Optuna 4 suggests the same.

    Args:
        together: whether to model hyperparameters together.
        good: one trial in this many counts as good (the quantile gamma is 1 / good); None for Optuna's ten.
        options: further options of Optuna's TPE.
    """

    def __init__(self, *, together: bool = True, good: int | None = None, **options: Any):
        super().__init__(multivariate=together, constant_liar=True, **options)
        if good is not None:
            self._gamma = lambda trials: min(-(-trials // good), MOST_GOOD)

    @classmethod
    def of(cls, draw: Draw) -> TPE:
        """Return the sampler of a draw."""
        config, together = draw.config, len(objectives_of(draw.config)) == 1
        options = {"seed": draw.seed, "n_startup_trials": config.generation, **draw.constraints}
        return cls(together=together, good=config.options.get(GOOD), **options)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the hyperparameters that all trials have.

        With several objectives, Optuna's own method is called.
        """
        if len(study.directions) > 1:
            return super().infer_relative_search_space(study, trial)
        common = _common.setdefault(study, IntersectionSearchSpace(include_pruned=True))
        return {
            name: distribution for name, distribution in common.calculate(study).items() if not distribution.single()
        }
