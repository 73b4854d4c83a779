"""ASHA, asynchronous successive halving (Li et al. 2018, arXiv:1810.05934).

A trial is promoted as soon as it is among the best floor(n / base) of the n trials that have finished its rung
(Algorithm 2); no trial waits for a rung to fill. Results that arrive later may show that a promotion was undeserved.

**Promotions depend on timing**: on the order in which results arrive, and thus on the number and speed of the workers.
Unlike with halving and Hyperband, two runs of the same study may promote different trials. Every trial's result remains
reproducible, as it depends only on its task, hyperparameters, seed and epochs. With the random sampler every trial's
hyperparameters are the same in each run, too; other samplers learn from the trials that are finished when they are
asked.

With several objectives, the best trials are those on the first Pareto fronts; within a front, those at the greatest
crowding distance, as in NSGA-II (see `study.objectives`). Schmucker et al. (2021), arXiv:2106.12639, promote in this
way.

The state follows from the rows alone; no worker leads. The scheduler asks for new trials when fewer than a generation
are ready or training.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from ..samplers.registry import learns
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.objectives import best_first, ranks_by_score
from ..study.plan import Plan, ScoreHistory

Rank = tuple[float, int]  # (-score, number): the best first, ties to the lower number


class ASHA:
    """Scheduler of ASHA.

    Its plan is a function of the rows, but the rows depend on timing.
    """

    def __init__(self, config: Config):
        self.config, self.base, self.brackets = config, config.epochs[2], config.brackets
        self._running: set[int] = set()
        self._known: set[int] = set()
        self._begun: set[int] = set()  # trials without a segment
        self._segments: dict[tuple[int, int], str] = {}  # their states
        self._ready: set[tuple[int, int]] = set()
        self._finished: list[list[Rank]] = [[] for _ in config.rungs]  # by rung, best first
        self._paused: list[list[Rank]] = [[] for _ in config.rungs]  # the finished ones that may still be promoted
        self._ranks: dict[tuple[int, int], Rank] = {}
        self._scores: ScoreHistory = {}
        self._by_score = ranks_by_score(config)
        self._results: list[list[Segment]] = [[] for _ in config.rungs]  # by rung, if more than scores rank them
        self._ranked: dict[int, list[int]] = {}  # cached ranking of `_results`
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
            if not self._by_score:
                self._results[row.rung].append(row)
                self._ranked.pop(row.rung, None)
            insort(self._scores.setdefault(row.number, []), (row.epochs, score_of(row)))
            if row.number in self._running and (row.number, row.rung + 1) not in self._segments:
                insort(self._paused[row.rung], rank)

    def _take(self, number: int, rung: int) -> None:
        """Remove a trial that was promoted or has ended from the paused."""
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
        if not self._by_score:
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
        """Return the sort key of a segment: higher rungs first."""
        return -segment.rung, segment.number

    def entrants(self) -> list[int]:
        """Return the number of trials on each rung if none fails.

        Undeserved early promotions come on top.
        """
        totals = [self.config.trials[-1]]
        for _ in self.config.rungs[1:]:
            totals.append(totals[-1] // self.base)
        return totals
