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
from .draw import Draw

MOST_GOOD = 25  # good trials at most; Optuna's default

_common: WeakKeyDictionary[Study, IntersectionSearchSpace] = WeakKeyDictionary()


class TPE(TPESampler):
    """Optuna's TPE with the same suggestions in less time.

    Args:
        good: one trial in this many counts as good (the quantile gamma is 1 / good); None for Optuna's ten.
        options: further options of Optuna's TPE.
    """

    def __init__(self, *, good: int | None = None, **options: Any):
        super().__init__(**options)
        if good is not None:
            self._gamma = lambda trials: min(-(-trials // good), MOST_GOOD)

    @classmethod
    def of(cls, draw: Draw) -> TPE:
        """Return the sampler of a draw."""
        return cls(seed=draw.seed, n_startup_trials=draw.config.generation, good=draw.config.options.get(GOOD))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the hyperparameters that all trials have.

        With several objectives, Optuna's own method is called.
        """
        if len(study.directions) > 1:
            return super().infer_relative_search_space(study, trial)
        common = _common.setdefault(study, IntersectionSearchSpace(include_pruned=True))
        return {name: each for name, each in common.calculate(study).items() if not each.single()}
