"""Friedman's test: decides which configurations can no longer win a race.

The test of F-Race (Birattari et al. 2002, A racing algorithm for configuring metaheuristics), as in irace (López-Ibáñez
et al. 2016): configurations are ranked within each seed, and Friedman's test decides whether they differ. If they do, a
configuration is eliminated if its rank sum is significantly worse than that of the last one to be promoted (Conover
1999, Practical Nonparametric Statistics, section 5.8). Of two configurations, one is eliminated by the sign test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .rank_correlation import ranks
from .tails import chi2_tail, t_tails

LEVEL = 0.05  # significance level


def eliminated(scores: Mapping[int, Sequence[float]], places: int) -> set[int]:
    """Return the configurations that are significantly worse than the last promoted one.

    Args:
        scores: each configuration's scores, one per seed.
        places: number of configurations to be promoted.
    """
    names, blocks = list(scores), list(zip(*scores.values(), strict=True))
    k, n = len(names), len(blocks)
    if k <= places:
        return set()
    if k == 2:
        return _eliminated_of_two(names, blocks)
    ranked = [ranks(block) for block in blocks]
    squares = sum(rank**2 for block in ranked for rank in block)
    sums = [sum(of_one) for of_one in zip(*ranked, strict=True)]
    spread = squares - n * k * (k + 1) ** 2 / 4
    if not spread:  # all scores are tied
        return set()
    friedman = (k - 1) * sum((rank_sum - n * (k + 1) / 2) ** 2 for rank_sum in sums) / spread
    if chi2_tail(friedman, k - 1) >= LEVEL:
        return set()
    freedom = (n - 1) * (k - 1)
    deviation = math.sqrt(max(0.0, 2 * (n * squares - sum(rank_sum**2 for rank_sum in sums)) / freedom))
    last = sorted(sums)[places - 1]
    behind = {name: rank_sum - last for name, rank_sum in zip(names, sums, strict=True) if rank_sum > last}
    return {name for name, by in behind.items() if not deviation or t_tails(by / deviation, freedom) < LEVEL}


def _eliminated_of_two(names: Sequence[int], blocks: Sequence[Sequence[float]]) -> set[int]:
    wins = [sum(block[i] > block[1 - i] for block in blocks) for i in (0, 1)]
    if min(wins) or 2.0 ** (1 - sum(wins)) >= LEVEL:
        return set()
    return {names[wins.index(0)]}
