"""NSGA-II (Deb et al. 2002) and NSGA-III (Deb and Jain 2014).

A generation is a bracket of the study: the trials that are suggested at once. Optuna's samplers count the complete
trials of a generation, which depends on timing. Here the parents of a generation are the elite of the bracket before
and of that one's parents, computed from the rows at each suggestion.
"""

from __future__ import annotations

from typing import Any

from optuna import Study
from optuna.samplers import BaseGASampler, NSGAIIISampler, NSGAIISampler
from optuna.trial import FrozenTrial, TrialState

BRACKET = "bracket"  # the user attribute of a trial that says its generation


class _OfBracket(BaseGASampler):
    """A genetic sampler of a trial in the given bracket."""

    def __init__(self, bracket: int, **options: Any):
        super().__init__(**options)
        self.bracket = bracket

    def get_trial_generation(self, study: Study, trial: FrozenTrial) -> int:
        """Return the generation of the trial that is suggested."""
        return self.bracket

    def get_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """Return the complete trials of a bracket."""
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return [trial for trial in complete if trial.user_attrs.get(BRACKET) == generation]

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """Return the parents.

        Where failures left only one, it returns none, so that the draw is random.
        """
        parents = super().get_parent_population(study, generation)
        return parents if len(parents) > 1 or generation < self.bracket else []


class NSGAII(_OfBracket, NSGAIISampler):
    """NSGA-II; with one objective, a genetic algorithm that keeps its elite."""


class NSGAIII(_OfBracket, NSGAIIISampler):
    """NSGA-III."""
