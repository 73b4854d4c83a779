"""Racing: a configuration that cannot win any more gets no more seeds.

The configurations that are ranked against each other, those of one bracket on one rung, run a heat. Each is trained
with two seeds, and then with one more at a time, the same for all. After each seed the test of F-Race (Birattari et al.
2002, A racing algorithm for configuring metaheuristics), as irace has it (López-Ibáñez et al. 2016), looks at the ranks
within each seed: Friedman's test says whether the configurations differ at all, and if so, those are out whose sum of
ranks lies significantly behind that of the last one that would be carried on, or of the best one on the highest rung;
Conover (1999), Practical Nonparametric Statistics, section 5.8. Of two configurations, one is out by the sign test.

A heat follows from finished rows alone, round by round, so a study is the same for any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..storage.rows import Segment, score_of

LEVEL = 0.05  # of significance
FIRST = 2  # seeds before the first test


@dataclass(frozen=True)
class Heat:
    """How far a heat has come.

    Attributes:
        wanted: (configuration, replicate) pairs that are to be trained now and have no row yet.
        out: configurations that get no more seeds.
        over: whether the others have all of theirs.
    """

    wanted: list[tuple[int, int]]
    out: set[int]
    over: bool


def race(rows: Mapping[int, Mapping[int, Segment]], seeds: int, places: int) -> Heat:
    """The heat of configurations, given their segments by replicate, of which the best `places` are carried on."""
    alive, out = sorted(rows), set[int]()
    for trained in range(FIRST, seeds + 1):
        replicates = range(trained)
        alive = [n for n in alive if not any(rows[n][s].state == "failed" for s in replicates if s in rows[n])]
        wanted = [(n, s) for n in alive for s in replicates if s not in rows[n]]
        if wanted or any(rows[n][s].state == "ready" for n in alive for s in replicates):
            return Heat(wanted, out, over=False)
        if trained < seeds:
            lost = losers({n: [score_of(rows[n][s]) for s in replicates] for n in alive}, places)
            alive, out = [n for n in alive if n not in lost], out | lost
    return Heat([], out, over=True)


def losers(scores: Mapping[int, Sequence[float]], places: int) -> set[int]:
    """The configurations that are significantly behind the one in the last of the places, of their scores by seed."""
    names, blocks = list(scores), list(zip(*scores.values(), strict=True))
    k, n = len(names), len(blocks)
    if k <= places:
        return set()
    if k == 2:
        return _loser_of_two(names, blocks)
    ranks = [_ranks(block) for block in blocks]
    squares = sum(rank**2 for block in ranks for rank in block)
    sums = [sum(of_one) for of_one in zip(*ranks, strict=True)]
    spread = squares - n * k * (k + 1) ** 2 / 4
    if not spread:  # all alike
        return set()
    friedman = (k - 1) * sum((each - n * (k + 1) / 2) ** 2 for each in sums) / spread
    if chi2_tail(friedman, k - 1) >= LEVEL:
        return set()
    freedom = (n - 1) * (k - 1)
    deviation = math.sqrt(max(0.0, 2 * (n * squares - sum(each**2 for each in sums)) / freedom))
    last = sorted(sums)[places - 1]
    behind = {name: each - last for name, each in zip(names, sums, strict=True) if each > last}
    return {name for name, by in behind.items() if not deviation or t_tails(by / deviation, freedom) < LEVEL}


def _loser_of_two(names: Sequence[int], blocks: Sequence[Sequence[float]]) -> set[int]:
    wins = [sum(block[i] > block[1 - i] for block in blocks) for i in (0, 1)]
    if min(wins) or 2.0 ** (1 - sum(wins)) >= LEVEL:
        return set()
    return {names[wins.index(0)]}


def _ranks(scores: Sequence[float]) -> list[float]:
    """1 for the highest score; equal ones share the mean of their ranks."""
    return [sum(other > score for other in scores) + (scores.count(score) + 1) / 2 for score in scores]


def chi2_tail(x: float, freedom: int) -> float:
    """The probability that a chi-squared variable exceeds x: Abramowitz and Stegun, 26.4.4 and 26.4.5."""
    if x <= 0:
        return 1.0
    odd = freedom % 2
    halves = (i + odd / 2 for i in range(freedom // 2))
    tail = math.erfc(math.sqrt(x / 2)) if odd else 0.0
    return tail + sum(math.exp(half * math.log(x / 2) - x / 2 - math.lgamma(half + 1)) for half in halves)


def t_tails(t: float, freedom: int) -> float:
    """The probability that Student's t exceeds t in size: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for i in range(freedom // 2):
        total += term
        term *= math.cos(angle) ** 2 * (2 * i + 1 + odd) / (2 * i + 2 + odd)
    within = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + within) if odd else within)
