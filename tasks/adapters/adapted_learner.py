"""Base classes of learners whose member is trained by code of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...spaces.values import flatten
from ..base_learner import BaseLearner
from ..errors import NotInitialized
from ..runtime.own_code import named_digest


class AdaptedLearner(BaseLearner):
    """State of a training by code of others.

    Attributes:
        title: name of the training in messages.
        definition: the user's class or function that trains.
        values: hyperparameters by dotted name.
    """

    batched, compiled = False, False
    title: ClassVar[str]
    definition: ClassVar[Callable[..., Any]]

    def assemble(self, values: Sequence[Mapping[str, Any]]) -> None:
        self.values = flatten(values[0])
        super().assemble(values)

    @classmethod
    def algorithm(cls) -> str:
        return cls.title

    @classmethod
    def files(cls) -> Mapping[str, str]:
        return named_digest(cls.definition)


class MeasuredLearner(AdaptedLearner):
    """State of a training that measures its objective."""

    def measured(self) -> Mapping[str, float]:
        """Return the last metrics by name; none before the first epoch."""
        raise NotImplementedError

    def score(self) -> np.ndarray:
        """Return the objective that was measured last, (1,)."""
        if self.objective not in (metrics := self.measured()):
            raise NotInitialized(f"{self.title} measures {self.objective} as it trains; train at least one epoch first")
        return np.array([metrics[self.objective]])

    def cure(self, member: int) -> str:
        return "try other hyperparameters"
