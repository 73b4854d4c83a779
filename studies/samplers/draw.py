"""The draw of one trial of a study."""

from __future__ import annotations

from typing import NamedTuple

from ..study.config import Config


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
