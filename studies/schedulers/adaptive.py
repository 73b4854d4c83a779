"""Successive halving that adapts to how well rungs agree.

In reinforcement learning, early returns often predict final returns poorly. Halving that keeps a third of the trials on
every rung can then do worse than random search: it stops good trials early and trains only one to the end. Here:

- A bracket of n trials costs at most as much as n / 3 full trainings (SAVING), whatever its results.
- The number of trials that still train falls as a power of the epochs t, n (t0 / t)^a, with the smallest a that the
  cost allows, so a trial is compared several times before it is stopped.
- At least n (1 / 12 + (1 - r) / 4) trials reach the end, where r is the rank correlation between the scores on
  successive rungs, pooled over this bracket and earlier ones. If rungs agree (r = 1), one of twelve does; if they are
  unrelated (r = 0), a third, as many as random search would train at the same cost.

Of a portfolio's trials, the better half trains to the end, whatever r is: after a third of a training, the best of
them is often another one than at the end. What this costs beyond n / 3 full trainings is saved in the next bracket,
whose trials are hardly ever better (figures are in `benchmarks/README.md`).

Before the first results, r is that of recorded trainings (EXPECTED). A bracket begins when all earlier brackets have
ended, so the sampler learns from full trainings and the plan depends only on the study's rows, never on timing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from ..statistics.rank_correlation import Agreement, pool
from ..storage.rows import Segment, score_of
from ..study.config import Config
from ..study.objectives import best_first, ranks_by_score
from .halving import Bracket, Halving

SAVING = 3  # a bracket of n trials costs at most as much as n / SAVING full trainings
EXPECTED = Agreement(4.0, 4.0 * math.atanh(0.7))  # prior: correlation 0.7 between rungs, weighing as much as 7 trials
STEPS = 40  # exponents are multiples of 1 / STEPS
SURE = 3.0  # standard errors of a difference
STEEPEST = 6 * STEPS  # the largest exponent tried, times STEPS


class Adaptive(Halving):
    """Halving with gentle promotions."""

    def __init__(self, config: Config):
        super().__init__(config)
        self._agreed = EXPECTED  # pooled with the agreement of retired brackets

    def _make_brackets(self) -> Sequence[Bracket]:
        """Return brackets of about equal size for each extension of the study.

        Trials that repeat the best ones are the last bracket.
        """
        brackets = [*self._opening()]
        start = len(self.config.portfolio)
        repeating = {numbers.stop: numbers for numbers in self.config.repeating}
        for total in self.config.trials:
            last = repeating.get(total, range(total, total))
            suggested = last.start - start
            count = -(-suggested // self.config.generation)
            ends = [start + suggested * (i + 1) // count for i in range(count)]
            brackets += [Bracket(range(low, high)) for low, high in zip([start, *ends], ends, strict=False)]
            brackets += [Bracket(last)] if last else []
            start = total
        return brackets

    def _awaited(self, earlier: int, later: int) -> int:
        return self._height(earlier)

    def _promoted(self, bracket: Bracket, rung: int, entrants: int) -> int:
        first = bracket.rung
        done = [
            sum((n, rung_before) in self._segments for n in bracket.numbers) for rung_before in range(first, rung + 1)
        ]
        agreement = self._agreement_before(bracket).pooled(self._agreement(bracket.numbers, rung))
        finishers = self._finishers(bracket) or wanted(done[0], agreement)
        return promotions(self.rungs[first:], tuple(done), finishers, self._budget(bracket))

    def entrants(self) -> list[int]:
        """Return the expected number of trials on each rung."""
        totals = [0] * len(self.rungs)
        for bracket in self.brackets:
            trials, rungs = len(bracket.numbers), self.rungs[bracket.rung :]
            counts = expected(rungs, trials, self._finishers(bracket), self._budget(bracket))
            for rung, count in enumerate(counts, bracket.rung):
                totals[rung] += count
        return totals

    def _finishers(self, bracket: Bracket) -> int | None:
        """Return how many trials reach the end, if that is given."""
        if bracket.numbers in self.config.repeating:
            return len(bracket.numbers)
        of_portfolio = self.config.portfolio and bracket.numbers.start == 0
        return self.config.options["portfolio"].get("finishers") if of_portfolio else None

    def _budget(self, bracket: Bracket) -> int:
        """Return the number of epochs that a bracket may cost."""
        trials, epochs = len(bracket.numbers), self.rungs[-1]
        share = trials * epochs // SAVING
        if bracket.numbers in self.config.repeating:
            return trials * epochs
        if finishers := self._finishers(bracket):
            compared = self.rungs[bracket.rung]
            return max(share, trials * compared + finishers * (epochs - compared))
        if bracket.numbers.start == len(self.config.portfolio) > 0:
            opening = self.brackets[0]
            share -= self._budget(opening) - len(opening.numbers) * epochs // SAVING if self._finishers(opening) else 0
        return share

    def _agreement_before(self, bracket: Bracket) -> Agreement:
        """Return the pooled agreement of rungs in all earlier brackets."""
        brackets = self.brackets[self._retired : self.bracket_of(bracket.numbers.start)]
        return pool([self._agreed, *(self._agreement(bracket.numbers, len(self.rungs) - 1) for bracket in brackets)])

    def _agreement(self, numbers: Iterable[int], rung: int) -> Agreement:
        """Return the pooled agreement of a bracket's rungs up to `rung`."""
        rows = [
            [row for n in numbers if (row := self._segments.get((n, lower))) and row.state == "done"]
            for lower in range(rung + 1)
        ]
        return pool(agreements(self.config, rows))

    def _retire_first(self) -> None:
        numbers = self.brackets[self._retired].numbers
        self._agreed = self._agreed.pooled(self._agreement(numbers, len(self.rungs) - 1))
        super()._retire_first()


def agreements(config: Config, rungs: Sequence[Sequence[Segment]]) -> list[Agreement]:
    """Return the rank agreement of each rung with the next one.

    Only trials with a result on both rungs count.

    Args:
        config: the study's configuration.
        rungs: the results on each rung, lowest rung first.
    """
    by_score, agreements = ranks_by_score(config), []
    for lower, upper in pairwise(rungs):
        both = {row.number for row in lower} & {row.number for row in upper}
        places = []
        for rows in (lower, upper):
            paired = [row for row in rows if row.number in both]
            ordered = sorted(paired, key=lambda row: row.number) if by_score else best_first(config, paired)
            scores = [row.score or 0.0 for row in ordered] if by_score else range(len(ordered), 0, -1)
            score = {row.number: float(value) for row, value in zip(ordered, scores, strict=True)}
            places.append([score[number] for number in sorted(both)])
        agreements.append(Agreement.of(*places))
    return agreements


def differ_later(equal: Sequence[Segment], later: Iterable[Segment]) -> bool:
    """Return whether results that are equal on one rung differ later.

    They differ from each other on a later rung, or from the equal ones beyond the noise of evaluations, whose episodes
    may be others there.
    """
    first, rungs = equal[0], dict[int, set[float]]()
    for row in later:
        rungs.setdefault(row.rung, {score_of(row)}).add(score_of(row))
        noise = math.hypot(first.eval_error or 0.0, row.eval_error or 0.0)
        if len(rungs[row.rung]) > 1 or abs(score_of(row) - score_of(first)) > SURE * noise:
            return True
    return False


def wanted(trials: int, agreement: Agreement) -> int:
    """Return how many trials of a bracket should reach the end.

    Args:
        trials: number of trials in the bracket.
        agreement: rank agreement of successive rungs; a negative correlation counts as 0.
    """
    return math.ceil(trials * (1 / 12 + (1 - max(0.0, agreement.correlation)) / 4))


@cache
def promotions(rungs: Sequence[int], done: Sequence[int], finishers: int, budget: int | None = None) -> int:
    """Return how many trials the last finished rung promotes.

    Args:
        rungs: epochs of each rung, ascending.
        done: number of trials with results on each rung so far.
        finishers: number of trials that should reach the end; fewer do if the cost does not allow it.
        budget: number of epochs of all trials together; None for a SAVING-th of all trainings.
    """
    rung, alive = len(done) - 1, done[-1]
    if rung == len(rungs) - 1:
        return 0
    lengths = [high - low for low, high in zip((0, *rungs), rungs, strict=False)]
    most = done[0] * rungs[-1] // SAVING if budget is None else budget
    left = max(most, rungs[-1])  # epochs left to spend; one trial always reaches the end
    left -= sum(count * length for count, length in zip(done, lengths, strict=False))
    later, to_come = rungs[rung + 1 :], lengths[rung + 1 :]

    def falling(steepness: int, least: int) -> list[int]:
        """Return the falling number of trials on each later rung."""
        shares = ((rungs[rung] / epochs) ** (steepness / STEPS) for epochs in later)
        return [max(least, math.floor(alive * share + 0.5)) for share in shares]

    # As many finishers as can be paid for; with these, the gentlest way down that can be paid for.
    for least in range(min(finishers, alive), 0, -1):
        for steepness in range(STEEPEST):
            counts = falling(steepness, least)
            if sum(map(operator.mul, counts, to_come)) <= left:
                return counts[0]
    return 1


@cache
def expected(rungs: Sequence[int], trials: int, finishers: int | None = None, budget: int | None = None) -> list[int]:
    """Return how many trials reach each rung if rungs agree as EXPECTED.

    The other arguments are those of `promotions`; None for as many finishers as `wanted`.
    """
    done = [trials]
    while len(done) < len(rungs):
        done.append(promotions(rungs, tuple(done), finishers or wanted(trials, EXPECTED), budget))
    return done
