"""Gentle halving that follows how much successive rungs agree.

Early returns often say little about late ones in reinforcement learning. Halving that keeps a third from rung to rung
then loses to random search, because it ends good trials early and has one training left at the end. Here

- a bracket of n trials costs at most as much as n / 3 trainings to the end (SAVING), whatever its results;
- what is in training falls along a power of the epochs t, n (t0 / t)^a, with the smallest a that the cost allows, so
  that a trial has several chances to show what is in it;
- at least n (1 / 12 + (1 - r) / 4) trials reach the end, where r is the rank correlation between the scores of
  successive rungs, pooled over this bracket and those before it. If rungs agree (r = 1), that is one of twelve. If they
  say nothing (r = 0) it is a third, as many as random search would train for the same cost.

At first r is what it is in recorded trainings (EXPECTED). A bracket begins when those before it have ended, so that the
sampler learns from trainings to the end, and its plan follows from the study's rows alone, never from timing.
"""

from __future__ import annotations

import math
import operator
from collections import ChainMap
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from ..samplers.registry import learns
from ..statistics.rank_correlation import Agreement
from ..storage.rows import Segment
from ..study.config import Config
from ..study.objectives import best_first, objectives_of
from ..study.plan import ScoreHistory
from .halving import Bracket, Halving

SAVING = 3  # a bracket costs as much as one of so many of its trials would, trained to the end
EXPECTED = Agreement(4.0, 4.0 * math.atanh(0.7))  # of successive rungs, worth as much as 7 trials
STEPS = 40  # exponents are multiples of 1 / STEPS
STEEPEST = 6 * STEPS


class Adaptive(Halving):
    """Scheduler of gentle halving."""

    def __init__(self, config: Config):
        super().__init__(config)
        self._ended: ScoreHistory = {}  # of the retired brackets, if the sampler learns
        self._agreed = EXPECTED  # how much the rungs of retired brackets agree

    def _make_brackets(self) -> Sequence[Bracket]:
        """Return brackets of about equal size in each extension of the study."""
        brackets, start = [], 0
        for total in self.config.trials:
            count = -(-(total - start) // self.config.generation)
            ends = [start + (total - start) * (i + 1) // count for i in range(count)]
            brackets += [Bracket(range(low, high)) for low, high in zip([start, *ends], ends, strict=False)]
            start = total
        return brackets

    def _awaited(self, h: int, g: int) -> int:
        return self._height(h)

    def _promoted(self, bracket: Bracket, rung: int, entrants: int) -> int:
        done = [sum((n, each) in self._segments for n in bracket.numbers) for each in range(rung + 1)]
        agreement = self._agreement_before(bracket).pooled(self._agreement(bracket.numbers, rung))
        return promotions(self.rungs, tuple(done), wanted(done[0], agreement))

    def entrants(self) -> list[int]:
        """Return the expected number of trials on each rung."""
        totals = [0] * len(self.rungs)
        for bracket in self.brackets:
            for rung, count in enumerate(expected(self.rungs, len(bracket.numbers))):
                totals[rung] += count
        return totals

    def _agreement_before(self, bracket: Bracket) -> Agreement:
        """Return how much the rungs of all earlier brackets agree."""
        held = self.brackets[self._retired : self.bracket_of(bracket.numbers.start)]
        return _sum([self._agreed, *(self._agreement(each.numbers, len(self.rungs) - 1) for each in held)])

    def _agreement(self, numbers: Iterable[int], rung: int) -> Agreement:
        """Return how much a bracket's rungs agree, up to one of them."""
        rows = [
            [row for n in numbers if (row := self._segments.get((n, each))) and row.state == "done"]
            for each in range(rung + 1)
        ]
        return _sum(agreements(self.config, rows))

    def _seen(self, asked: int) -> ScoreHistory:
        held = (self._scores_of(h) for h in range(self._retired, asked)) if learns(self.config) else ()
        return dict(ChainMap(*held, self._ended))

    def _retire_bracket(self, g: int) -> None:
        if learns(self.config):
            self._ended |= self._scores_of(g)
        self._agreed = self._agreed.pooled(self._agreement(self.brackets[g].numbers, len(self.rungs) - 1))
        super()._retire_bracket(g)


def _sum(parts: Iterable[Agreement]) -> Agreement:
    total = Agreement()
    for part in parts:
        total = total.pooled(part)
    return total


def agreements(config: Config, rungs: Sequence[Sequence[Segment]]) -> list[Agreement]:
    """Return how much each rung agrees with the next one.

    Args:
        config: the study's.
        rungs: results of the trials on each rung.
    """
    several = len(objectives_of(config)) > 1
    found = []
    for lower, upper in pairwise(rungs):
        both = {row.number for row in lower} & {row.number for row in upper}
        places = []
        for rows in (lower, upper):
            held = [row for row in rows if row.number in both]
            ordered = best_first(config, held) if several else sorted(held, key=lambda row: row.number)
            scores = range(len(ordered), 0, -1) if several else [row.score or 0.0 for row in ordered]
            score = {row.number: float(each) for row, each in zip(ordered, scores, strict=True)}
            places.append([score[number] for number in sorted(both)])
        found.append(Agreement.of(*places))
    return found


def wanted(trials: int, agreement: Agreement) -> int:
    """Return how many trials of a bracket ought to reach the end."""
    return math.ceil(trials * (1 / 12 + (1 - max(0.0, agreement.correlation)) / 4))


@cache
def promotions(rungs: Sequence[int], done: Sequence[int], finishers: int) -> int:
    """Return how many trials the last finished rung promotes.

    Args:
        rungs: epochs of each, rising.
        done: how many trials the bracket had on each rung so far.
        finishers: how many ought to reach the end; there are fewer if the cost does not allow it.
    """
    rung, alive = len(done) - 1, done[-1]
    if rung == len(rungs) - 1:
        return 0
    lengths = [high - low for low, high in zip((0, *rungs), rungs, strict=False)]
    left = max(done[0] * rungs[-1] // SAVING, rungs[-1])  # one trial always reaches the end
    left -= sum(count * length for count, length in zip(done, lengths, strict=False))
    times, lengths = rungs[rung + 1 :], lengths[rung + 1 :]

    def falling(step: int, least: int) -> list[int]:
        return [max(least, math.floor(alive * (rungs[rung] / time) ** (step / STEPS) + 0.5)) for time in times]

    for least in range(min(finishers, alive), 1, -1):
        costs = (sum(map(operator.mul, falling(step, least), lengths)) for step in range(STEEPEST))
        gentlest = next((step for step, cost in enumerate(costs) if cost <= left), None)
        if gentlest is not None:
            return falling(gentlest, least)[0]
    return 1


@cache
def expected(rungs: Sequence[int], trials: int) -> list[int]:
    """Return how many trials reach each rung if rungs agree as expected."""
    done = [trials]
    while len(done) < len(rungs):
        done.append(promotions(rungs, tuple(done), wanted(trials, EXPECTED)))
    return done
