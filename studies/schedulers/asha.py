"""ASHA, asynchronous successive halving (Li et al. 2018, arXiv:1810.05934).

The rows alone carry it forward, without a leader.

A trial is promoted as soon as it is among the best floor(n / base) of the n that have finished its rung (Algorithm 2);
nobody waits for a rung to fill. A promoted trial can turn out, later, not to have deserved it.

**Which trials are promoted depends on timing**: on the order in which results come in, and so on the number and the
speed of the workers. The same study run twice is not the same study, other than with halving and hyperband. Each
trial's result is still exact: a function of its task, hyperparameters, seed and epochs, whatever was promoted beside
it. With the random sampler the hyperparameters of every trial are the same in each run, too; others learn from what is
finished when they are asked.

Of several objectives none counts more than another: the best are those of the first fronts, and what lies apart before
the rest of a front, as by NSGA-II (objectives.py). Schmucker et al. (2021), arXiv:2106.12639, promote so.

The scheduler keeps work for as many trials as a generation has: it asks for new ones when fewer are ready or in
training.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from ..samplers.registry import learns
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.objectives import best_first, objectives_of
from ..study.plan import Plan, ScoreHistory

Rank = tuple[float, int]  # (-score, number): the best first, ties to the lower number


class ASHA:
    """Scheduler of ASHA.

    Its plan is a function of the rows, which depend on timing.
    """

    def __init__(self, config: Config):
        self.config, self.base, self.brackets = config, config.epochs[2], config.brackets
        self._running: set[int] = set()
        self._known: set[int] = set()
        self._begun: set[int] = set()  # those that have no segment yet
        self._segments: dict[tuple[int, int], str] = {}  # their states
        self._ready: set[tuple[int, int]] = set()
        self._finished: list[list[Rank]] = [[] for _ in config.rungs]  # of each rung
        self._paused: list[list[Rank]] = [[] for _ in config.rungs]  # those of them that could be promoted
        self._ranks: dict[tuple[int, int], Rank] = {}
        self._scores: ScoreHistory = {}
        self._several = len(objectives_of(config)) > 1
        self._results: list[list[Segment]] = [[] for _ in config.rungs]  # of each rung, if there are several objectives
        self._ranked: dict[int, list[int]] = {}  # their numbers from the best on, until another one finishes the rung
        self._asked = 0  # number of brackets with suggested trials

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Take new and changed rows of the study into account."""
        for trial in trials:
            if trial.number not in self._known:
                self._known.add(trial.number)
                self._begun.add(trial.number)
            if trial.state == "running":
                self._running.add(trial.number)
            elif trial.number in self._running:
                self._running.remove(trial.number)
                for rung in range(len(self._paused)):
                    self._take(trial.number, rung)
        for row in segments:
            self._observe(row)

    def _observe(self, row: Segment) -> None:
        key, before = (row.number, row.rung), self._segments.get((row.number, row.rung))
        self._segments[key] = row.state
        (self._ready.add if row.state == "ready" else self._ready.discard)(key)
        if before is None:
            self._begun.discard(row.number)
            self._take(row.number, row.rung - 1)
        if row.state == before:
            return
        if row.state == "failed":
            self._scores.setdefault(row.number, [])
        elif row.state == "done":
            rank = self._ranks[key] = (-score_of(row), row.number)
            insort(self._finished[row.rung], rank)
            if self._several:
                self._results[row.rung].append(row)
                self._ranked.pop(row.rung, None)
            insort(self._scores.setdefault(row.number, []), (row.epochs, score_of(row)))
            if row.number in self._running and (row.number, row.rung + 1) not in self._segments:
                insort(self._paused[row.rung], rank)

    def _take(self, number: int, rung: int) -> None:
        """Remove a trial from those paused on a rung.

        The trial was promoted or has ended.
        """
        rank, paused = self._ranks.get((number, rung)), self._paused[rung]
        if rank is not None and (at := bisect_left(paused, rank)) < len(paused) and paused[at] == rank:
            del paused[at]

    def plan(self) -> Plan:
        """Return the plan that follows from the rows."""
        plan = Plan()
        top = len(self.config.rungs) - 1
        plan.segments = [Segment(number, 0, self.config.rungs[0]) for number in sorted(self._begun & self._running)]
        for rung in reversed(range(top)):
            promoted = self._promotable(rung)
            plan.segments += [Segment(number, rung + 1, self.config.rungs[rung + 1]) for number in promoted]
        plan.finished = [(number, "complete") for number in sorted(number for _, number in self._paused[top])]
        while self._asked < len(self.brackets) and self._known.issuperset(self.brackets[self._asked]):
            self._asked += 1
        if self._asked < len(self.brackets):
            if len(self._ready) + len(plan.segments) < self.config.generation:
                plan.ask, plan.bracket = self.brackets[self._asked], self._asked
                plan.seen = {n: [*s] for n, s in self._scores.items()} if learns(self.config) else {}
        elif not self._ready and not plan:
            self._end(plan)
        return plan

    def _promotable(self, rung: int) -> Iterator[int]:
        finished = self._finished[rung]
        if self._several:
            paused = {number for _, number in self._paused[rung]}
            yield from (number for number in self._best(rung, len(finished) // self.base) if number in paused)
            return
        for rank in self._paused[rung]:
            if bisect_left(finished, rank) >= len(finished) // self.base:
                return
            yield rank[1]

    def _best(self, rung: int, count: int) -> list[int]:
        if rung not in self._ranked:
            self._ranked[rung] = [row.number for row in best_first(self.config, self._results[rung])]
        return self._ranked[rung][:count]

    def _end(self, plan: Plan) -> None:
        """End the trials that were not promoted.

        Nothing is left to train unless the study is extended.
        """
        plan.finished = [(number, "pruned") for number in sorted(self._running)]
        plan.exact = bool(plan.finished)
        plan.complete = not plan

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Sort the segments of trials on higher rungs first."""
        return -segment.rung, segment.number

    def entrants(self) -> list[int]:
        """Return the number of trials on each rung if none fails.

        Early promotions come on top.
        """
        totals = [self.config.trials[-1]]
        for _ in self.config.rungs[1:]:
            totals.append(totals[-1] // self.base)
        return totals
