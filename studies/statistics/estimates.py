"""Estimates with confidence intervals; importing this does not import NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FEWEST = 3  # runs for an interval; the spread of two is meaningless
ENOUGH_TO_HOLD = 14  # runs: if a fifth of all runs has an accident, all of so many have none in 4 of 100 cases


class Interval(NamedTuple):
    """An estimate and its confidence interval.

    Attributes:
        estimate: estimate.
        low: lower end of the 95% interval.
        high: upper end.
    """

    estimate: float
    low: float
    high: float

    def within(self, least: float | None, greatest: float | None, results: Sequence[float]) -> Interval:
        """Return the interval with its ends within bounds; None is no bound.

        Nor is a bound beyond which one of the results lies. The interval still contains the estimate.
        """
        _, low, high = self
        if least is not None and least <= min(results):
            low = max(low, min(least, self.estimate))
        if greatest is not None and greatest >= max(results):
            high = min(high, max(greatest, self.estimate))
        return self._replace(low=low, high=high)
