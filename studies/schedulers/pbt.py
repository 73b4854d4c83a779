"""Population based training (PBT): Jaderberg et al. (2017), arXiv:1711.09846.

A population trains in generations of a few epochs. After each generation, members with low scores copy the state and
the hyperparameters of members with high scores (exploit) and perturb the hyperparameters (explore).

A generation is a barrier: the next one begins when every member has a score or has failed. Every choice is drawn from
the stream named by (seed, generation, member), so the plan depends on the study alone, never on timing. A member that
continues is the same trial with another segment. A member that exploits ends, and a new trial, branched from the state
of the copied member, takes its place. A failed member is always replaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...tasks.rng import streams
from ..storage.rows import Segment, Trial
from ..study.config import Config
from ..study.objectives import worth
from ..study.plan import Branch, Plan

EXPLOITS = ("truncation", "tournament")
EXPLORES = ("perturb", "resample", "pb2")
FRACTION = 0.2  # under truncation, the worst fifth copies from the best fifth (section 4.1.1)


class PBT:
    """Scheduler of PBT.

    The study's first bracket is the population; its rungs are the generations.
    """

    def __init__(self, config: Config):
        self.config = config
        self.population = config.brackets[0]
        self._trials: dict[int, Trial] = {}
        self._rows: dict[tuple[int, int], Segment] = {}
        self._closed = 0  # number of generations that are final
        self._members = list(self.population)  # trial of each member in the first open generation
        self._born = len(self.population)  # number of the next branch

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Return the sort key of a segment: earlier generations first."""
        return segment.rung, segment.number

    def entrants(self) -> list[int]:
        """Return the population's size for each generation."""
        return [len(self.population)] * len(self.config.rungs)

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Take new and changed rows of the study into account."""
        self._trials |= {trial.number: trial for trial in trials}
        self._rows |= {(row.number, row.rung): row for row in segments}

    def plan(self) -> Plan:
        """Return the plan that follows from the rows."""
        plan = Plan()
        trials, rows = self._trials, self._rows
        if any(number not in trials for number in self.population):
            plan.ask = self.population
            return plan
        members, born = list(self._members), self._born
        for generation in range(self._closed, len(self.config.rungs)):
            missing = [n for n in members if (n, generation) not in rows]
            plan.segments += [Segment(n, generation, self.config.rungs[generation]) for n in missing]
            results = [rows[n, generation] for n in members if (n, generation) in rows]
            if missing or any(row.state == "ready" for row in results):
                return plan
            last = generation == len(self.config.rungs) - 1 or all(row.state == "failed" for row in results)
            parents = {} if last else self._exploit(results, generation)
            ended = [members[member] for member in (range(len(members)) if last else parents)]
            state = "complete" if last else "pruned"
            plan.finished += [(number, state) for number in ended if trials[number].state == "running"]
            if last:
                break
            for member, parent in sorted(parents.items()):
                members[member], born = born, born + 1
                if members[member] not in trials:
                    number = members[member]
                    plan.branches.append(Branch(number, number, results[parent], member, generation + 1))
            if plan.branches:
                return plan  # a parent may continue only after its state was copied
            if not plan:
                self._closed, self._members, self._born = generation + 1, list(members), born
        plan.complete = not plan
        return plan

    def _exploit(self, results: list[Segment], generation: int) -> dict[int, int]:
        """Return the member that each exploiting member copies.

        Members that are not in the result continue unchanged.
        """
        living = [member for member, row in enumerate(results) if row.state == "done"]
        worths = {member: worth(self.config, results[member]) for member in living}
        ranked = sorted(living, key=lambda member: (*(-part for part in worths[member]), results[member].number))
        size, truncates = len(self.population), self.config.options["exploit"] == "truncation"
        elite = min(-(-size * int(100 * FRACTION) // 100), max(1, size // 2))  # size of either fraction
        spared = max(0, elite - (size - len(ranked)))  # failed members count among the worst
        parents: dict[int, int] = {}
        for member, row in enumerate(results):
            if truncates:
                copies = row.state == "failed" or member in ranked[len(ranked) - spared :]
                candidates = ranked[:elite] if copies else []
            else:
                candidates = ranked if row.state == "failed" else [other for other in living if other != member]
            parent = self._pick(candidates, generation, member)
            if parent is not None and (row.state == "failed" or worths[parent] > worths[member]):
                parents[member] = parent
        return parents

    def _pick(self, candidates: list[int], generation: int, member: int) -> int | None:
        if not candidates:
            return None
        u = float(streams.uniform(streams.key(self.config.seed, "exploit", generation, member), 0)[0])
        return candidates[int(u * len(candidates))]
