"""The draw of one trial of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..study.config import Config

CONSTRAINTS = "constraints"  # Optuna's key of a trial's system attributes: excesses, by which it is infeasible


def constrained(excesses: Sequence[float]) -> dict[str, Any]:
    """Return the system attributes of a trial with constraints; none without."""
    return {CONSTRAINTS: [*excesses]} if excesses else {}


def violation(attributes: Mapping[str, Any]) -> float:
    """Return the violation in a trial's system attributes."""
    return sum(max(0.0, excess) for excess in attributes.get(CONSTRAINTS, ()))


class Draw(NamedTuple):
    """A trial's draw.

    Attributes:
        config: configuration of the study.
        number: number of the trial.
        attempt: number of earlier draws for this trial, which were invalid.
        bracket: bracket of the trials that are suggested together.
    """

    config: Config
    number: int
    attempt: int = 0
    bracket: int = 0

    @property
    def seed(self) -> int:
        """Seed of this draw alone."""
        from ...tasks.rng import streams  # slow to import (NumPy), for those that only read plans

        return streams.seed_of(self.config.seed, "suggest", self.number, self.attempt)

    @property
    def constraints_func(self) -> dict[str, Any]:
        """Argument by which samplers learn how far a trial is infeasible."""
        if not self.config.options.get("constraint"):
            return {}
        return {"constraints_func": lambda trial: trial.system_attrs[CONSTRAINTS]}

    @property
    def constraints(self) -> dict[str, Any]:
        """Argument by which samplers of Optuna 4 obey constraints."""
        import optuna  # slow to import

        return self.constraints_func if int(optuna.__version__.partition(".")[0]) <= 4 else {}
