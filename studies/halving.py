"""Successive halving (Jamieson and Talwalkar 2016, arXiv:1502.07943) in brackets that overlap like a pipeline's stages.

All trials of a bracket train to the first rung; the best third of them (ceil(n / base), ties to the lower number) are
carried on to the next rung, and so on to the top.

A bracket is suggested once every result that its suggestions may depend on is there: rung r of the bracket that lies
r + 1 brackets before it, for every r, whatever else has been finished meanwhile. So a suggestion is a function of the
study alone, never of timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .config import Config
from .plans import Plan, Seen, score_of
from .rows import Segment, Trial


class Halving:
    """The scheduler; with one rung only it trains every trial to the end."""

    def __init__(self, config: Config):
        self.config = config

    def plan(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> Plan:
        """What follows from the rows of the study."""
        return _Rows(self.config, trials, segments).plan()

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Segments that the next suggestions wait for come first."""
        bracket = next(i for i, numbers in enumerate(self.config.brackets) if segment.number in numbers)
        return bracket + segment.rung, segment.number

    def entrants(self) -> list[int]:
        """How many trials train to each rung, if none fails."""
        totals = [0] * len(self.config.rungs)
        for numbers in self.config.brackets:
            count = len(numbers)
            for rung in range(len(totals)):
                totals[rung] += count
                count = -(-count // self.config.epochs[2])
        return totals


class _Rows:
    """What halving makes of the rows of one moment."""

    def __init__(self, config: Config, trials: Iterable[Trial], segments: Iterable[Segment]):
        self.config, self.rungs = config, config.rungs
        self.top = len(self.rungs) - 1
        self.trials = {trial.number: trial for trial in trials}
        self.segments = {(segment.number, segment.rung): segment for segment in segments}

    def plan(self) -> Plan:
        plan = Plan()
        brackets = self.config.brackets
        settled = [self._follow(numbers, plan) for numbers in brackets]
        for g, numbers in enumerate(brackets):
            if all(number in self.trials for number in numbers):
                continue
            if all(settled[h] >= min(g - h, self.top + 1) for h in range(g)):
                plan.ask, plan.seen = numbers, self._seen(g)
            break
        settled_all = all(rungs == self.top + 1 for rungs in settled)
        plan.complete = settled_all and not plan
        return plan

    def _follow(self, numbers: range, plan: Plan) -> int:
        """Adds to the plan what follows for one bracket; how many of its rungs are settled."""
        if any(number not in self.trials for number in numbers):
            return 0
        entrants: Sequence[int] = numbers
        for rung, epochs in enumerate(self.rungs):
            missing = [n for n in entrants if (n, rung) not in self.segments and self.trials[n].state == "running"]
            plan.segments += [Segment(n, rung, epochs) for n in missing]
            rows = [self.segments[n, rung] for n in entrants if (n, rung) in self.segments]
            if missing or any(row.state == "ready" for row in rows):
                return rung
            ranked = sorted((row for row in rows if row.state == "done"), key=lambda row: (-score_of(row), row.number))
            places = 0 if rung == self.top else -(-len(entrants) // self.config.epochs[2])
            entrants = sorted(row.number for row in ranked[:places])
            state = "complete" if rung == self.top else "pruned"
            stopped = (row.number for row in ranked[places:] if self.trials[row.number].state == "running")
            plan.finished += [(number, state) for number in stopped]
        return self.top + 1

    def _seen(self, asked: int) -> Seen:
        """The scores that the suggestions of a bracket may depend on."""
        seen: Seen = {}
        for h, numbers in enumerate(self.config.brackets[:asked]):
            for number in numbers:
                rows = (self.segments.get((number, rung)) for rung in range(min(asked - h, self.top + 1)))
                seen[number] = [(row.epochs, score_of(row)) for row in rows if row and row.state == "done"]
        return seen
