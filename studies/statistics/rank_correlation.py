"""Rank correlations with their uncertainty, pooled over several samples.

Spearman's correlation r of n pairs is averaged through Fisher's z = artanh r, whose variance is about 1.06 / (n - 3):
Fieller, Hartley and Pearson (1957), doi:10.1093/biomet/44.3-4.470. Samples are pooled by the mean of z, weighted by the
inverse variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import groupby
from statistics import NormalDist
from typing import NamedTuple

VARIANCE = 1.06
LARGEST = 0.99  # |r| is clipped here, as z is infinite at 1
FEWEST = 4  # pairs for a correlation; the variance needs n > 3
NORMAL = 1.959964  # the 97.5% quantile


def ranks(scores: Sequence[float]) -> list[float]:
    """Return the rank of each score, 1 for the highest.

    Tied scores share the mean of their ranks.
    """
    result, before = [0.0] * len(scores), 0
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    for _, together in groupby(order, key=lambda index: scores[index]):
        equals = list(together)
        for index in equals:
            result[index] = before + (len(equals) + 1) / 2
        before += len(equals)
    return result


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the rank correlation, None if either side is constant."""
    middle = (len(one) + 1) / 2
    x, y = ([rank - middle for rank in ranks(scores)] for scores in (one, other))
    spread = sum(value * value for value in x) * sum(value * value for value in y)
    return sum(a * b for a, b in zip(x, y, strict=True)) / math.sqrt(spread) if spread else None


class Agreement(NamedTuple):
    """A pooled rank correlation.

    Attributes:
        weight: the inverse variance of z.
        weighted: z times its weight.
        pairs: number of pairs in the samples.
    """

    weight: float = 0.0
    weighted: float = 0.0
    pairs: int = 0

    @classmethod
    def of(cls, one: Sequence[float], other: Sequence[float]) -> Agreement:
        """Return the agreement of one sample; fewer than four pairs count nothing."""
        r = spearman(one, other) if len(one) >= FEWEST else None
        if r is None:
            return cls()
        weight = (len(one) - 3) / VARIANCE
        return cls(weight, weight * math.atanh(max(-LARGEST, min(LARGEST, r))), len(one))

    def pooled(self, other: Agreement) -> Agreement:
        """Return the agreement of both samples together."""
        return Agreement(self.weight + other.weight, self.weighted + other.weighted, self.pairs + other.pairs)

    @property
    def correlation(self) -> float:
        """Pooled correlation; 0 without data."""
        return math.tanh(self.weighted / self.weight) if self.weight else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of the correlation."""
        if not self.weight:
            return -1.0, 1.0
        z, half = self.weighted / self.weight, NORMAL / math.sqrt(self.weight)
        return math.tanh(z - half), math.tanh(z + half)


def pool(agreements: Iterable[Agreement]) -> Agreement:
    """Return the agreement of several samples together."""
    return reduce(Agreement.pooled, agreements, Agreement())


def unrestricted(correlation: float, share: float) -> float:
    """Correct a correlation among the best for their selection.

    For normal variables, it follows from the variance that remains among the best: Thorndike's case 2 (1949, Personnel
    Selection).

    Args:
        correlation: correlation among those selected.
        share: fraction that was selected, above 0 and at most 1.

    Returns:
        The estimated correlation among all.
    """
    if share >= 1:
        return correlation
    normal = NormalDist()
    cut = normal.inv_cdf(1 - share)
    mean = normal.pdf(cut) / share
    variance = 1 - mean * (mean - cut)
    return correlation / math.sqrt(correlation**2 + variance * (1 - correlation**2))
