"""NSGA-II (Deb et al. 2002) and NSGA-III (Deb and Jain 2014).

A generation is a bracket of the study: the trials suggested together. Optuna's samplers assign generations by counting
complete trials, which depends on timing. Here the parents of a generation are selected from the previous bracket and
its parents, computed from the rows at each suggestion.
"""

from __future__ import annotations

from typing import Any, Self

from optuna import Study
from optuna.samplers import BaseGASampler, NSGAIIISampler, NSGAIISampler
from optuna.trial import FrozenTrial, TrialState

from ..errors import BadConfig
from ..study.config import Config
from .draw import Draw

BRACKET = "bracket"  # user attribute of a trial with its generation


class _OfBracket(BaseGASampler):
    """Genetic sampler of a single trial in the given bracket."""

    def __init__(self, bracket: int, **options: Any):
        super().__init__(**options)
        self.bracket = bracket

    @classmethod
    def of(cls, draw: Draw) -> Self:
        """Return the sampler of a draw."""
        return cls(draw.bracket, population_size=draw.config.generation, seed=draw.seed, **draw.constraints)

    @staticmethod
    def check(config: Config) -> None:
        """Raise BadConfig if a generation has a single trial."""
        if config.generation < 2:
            raise BadConfig(
                f"sampler {config.sampler} crosses the trials of a generation, at least 2, but --generation is "
                f"{config.generation}"
            )

    def get_trial_generation(self, study: Study, trial: FrozenTrial) -> int:
        """Return the generation of the trial being suggested."""
        return self.bracket

    def get_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """Return the complete trials of a bracket."""
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return [trial for trial in complete if trial.user_attrs.get(BRACKET) == generation]

    def get_parent_population(self, study: Study, generation: int) -> list[FrozenTrial]:
        """Return the parents of a generation.

        Crossover needs two parents; if failures left only one, the result is empty and the draw random.
        """
        parents = super().get_parent_population(study, generation)
        return parents if len(parents) > 1 or generation < self.bracket else []


class NSGAII(_OfBracket, NSGAIISampler):
    """NSGA-II; with one objective, an elitist genetic algorithm."""


class NSGAIII(_OfBracket, NSGAIIISampler):
    """NSGA-III."""
