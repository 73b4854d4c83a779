"""Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) in overlapping brackets.

All trials of a bracket train to its first rung; the best ceil(n / base) of them (ties to the lower number) are promoted
to the next rung, and so on to the top.

A new bracket's trials are suggested when the results that the suggestions may use are known: the first r rungs of the
r-th bracket before it, for every r. Results beyond those are not used even if they are there. Suggestions therefore
depend on the study alone, never on timing, and few brackets are open at a time. When all rungs of a bracket are
finished and its trials have ended, the scheduler retires it and drops its rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..samplers.registry import learns
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.objectives import best_first
from ..study.plan import Plan, ScoreHistory


@dataclass(frozen=True)
class Bracket:
    """Trials that are suggested together and compete with each other.

    Attributes:
        numbers: numbers of its trials.
        rung: the first rung to which they train.
    """

    numbers: range
    rung: int = 0


@dataclass(frozen=True)
class Step:
    """The rows that follow from those of one bracket.

    Attributes:
        finished: number of finished rungs.
        segments: to add.
        ends: (number, state) of trials that end.
    """

    finished: int
    segments: list[Segment]
    ends: list[tuple[int, str]]


class Halving:
    """Scheduler of successive halving.

    With a single rung, every trial trains to the end.
    """

    def __init__(self, config: Config):
        self.config, self.rungs = config, config.rungs
        self.base = config.epochs[2] if config.scheduling.promotes else 1  # base 1 promotes all
        self.brackets = self._make_brackets()
        self._starts = [bracket.numbers.start for bracket in self.brackets]
        self._trials: dict[int, Trial] = {}
        self._segments: dict[tuple[int, int], Segment] = {}
        self._retired = 0  # number of finished brackets whose rows were dropped
        self._scores: list[ScoreHistory] = []  # of retired brackets, if the sampler learns

    def _make_brackets(self) -> Sequence[Bracket]:
        brackets = [Bracket(numbers) for numbers in self.config.brackets]
        return [*self._opening(), *brackets[len(self._opening()) :]]

    def _opening(self) -> Sequence[Bracket]:
        """Return the bracket of the portfolio, if there is one."""
        size = len(self.config.portfolio)
        return [Bracket(range(size), self.config.portfolio_rung)] if size else []

    def _promotions(self, entrants: int) -> int:
        """Return how many of a rung's trials are promoted."""
        return -(-entrants // self.base)

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Take new and changed rows of the study into account."""
        if self._retired < len(self.brackets):
            first = self.brackets[self._retired].numbers.start
            self._trials |= {row.number: row for row in trials if row.number >= first}
            self._segments |= {(row.number, row.rung): row for row in segments if row.number >= first}

    def plan(self) -> Plan:
        """Return the plan that follows from the rows."""
        plan = Plan()
        finished: dict[int, int] = {}  # number of finished rungs, by bracket that is not retired
        for index in range(self._retired, len(self.brackets)):
            bracket = self.brackets[index]
            if any(number not in self._trials for number in bracket.numbers):  # still to be suggested
                if all(rungs >= self._awaited(earlier, index) for earlier, rungs in finished.items()):
                    plan.ask, plan.bracket, plan.rung = bracket.numbers, index, bracket.rung
                    plan.seen = self._seen(index)
                break
            step = self._follow(bracket)
            plan.segments += step.segments
            plan.finished += step.ends
            if index == self._retired and step.finished == self._height(index) and not step.ends:
                self._retire_first()
            else:
                finished[index] = step.finished
        plan.complete = self._retired == len(self.brackets)
        return plan

    def bracket_of(self, number: int) -> int:
        """Return the index of a trial's bracket."""
        return bisect_right(self._starts, number) - 1

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Return the sort key of a segment.

        Segments for which the next suggestions wait come first.
        """
        g = self.bracket_of(segment.number)
        return g + segment.rung - self.brackets[g].rung, segment.number

    def entrants(self) -> list[int]:
        """Return the expected number of trials on each rung."""
        totals = [0] * len(self.rungs)
        for bracket in self.brackets:
            count = len(bracket.numbers)
            for rung in range(bracket.rung, len(totals)):
                totals[rung] += count
                count = self._promotions(count)
        return totals

    def promotions(self, rung: int, entrants: int) -> int:
        """Return how many trials a rung promotes; 0 on the top rung."""
        return 0 if rung == len(self.rungs) - 1 else self._promotions(entrants)

    def _promoted(self, bracket: Bracket, rung: int, entrants: int) -> int:
        """Return how many trials a finished rung of a bracket promotes."""
        return self.promotions(rung, entrants)

    def _height(self, index: int) -> int:
        """Return the number of rungs of a bracket."""
        return len(self.rungs) - self.brackets[index].rung

    def _awaited(self, earlier: int, later: int) -> int:
        """Return how many rungs of an earlier bracket a later one awaits."""
        return min(later - earlier, self._height(earlier))

    def _follow(self, bracket: Bracket) -> Step:
        """Return what follows from the rows of a bracket."""
        top = len(self.rungs) - 1
        entrants: Sequence[int] = bracket.numbers
        ends: list[tuple[int, str]] = []
        for rung in range(bracket.rung, top + 1):
            missing = [n for n in entrants if (n, rung) not in self._segments and self._trials[n].state == "running"]
            rows = [self._segments[n, rung] for n in entrants if (n, rung) in self._segments]
            if missing or any(row.state == "ready" for row in rows):
                return Step(rung - bracket.rung, [Segment(n, rung, self.rungs[rung]) for n in missing], ends)
            ranked = best_first(self.config, rows)
            promoted = self._promoted(bracket, rung, len(entrants))
            entrants = sorted(row.number for row in ranked[:promoted])
            state = "complete" if rung == top else "pruned"
            stopped = (row.number for row in ranked[promoted:] if self._trials[row.number].state == "running")
            ends += [(number, state) for number in stopped]
        return Step(top + 1 - bracket.rung, [], ends)

    def _retire_first(self) -> None:
        """Drop the rows of the first open bracket, but keep its scores."""
        if learns(self.config):
            self._scores.append(self._scores_of(self._retired))
        for number in self.brackets[self._retired].numbers:
            del self._trials[number]
            for rung in range(len(self.rungs)):
                self._segments.pop((number, rung), None)
        self._retired += 1

    def _seen(self, count: int) -> ScoreHistory:
        """Return the scores on which the suggestions of a bracket may depend.

        They are the scores on the rungs that it waited for; empty if the sampler does not learn.
        """
        if not learns(self.config):
            return {}
        scores = [*self._scores, *(self._scores_of(index) for index in range(self._retired, count))]
        return {
            number: row[: self._awaited(earlier, count)]
            for earlier, of_bracket in enumerate(scores)
            for number, row in of_bracket.items()
        }

    def _scores_of(self, index: int) -> ScoreHistory:
        """Return the scores of a held bracket's trials, rung by rung."""
        rungs = range(self.brackets[index].rung, len(self.rungs))
        scores: ScoreHistory = {}
        for number in self.brackets[index].numbers:
            rows = (self._segments.get((number, rung)) for rung in rungs)
            scores[number] = [(row.epochs, score_of(row)) for row in rows if row and row.state == "done"]
        return scores
