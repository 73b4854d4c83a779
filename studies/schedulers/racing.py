"""A scheduler of configurations whose seeds are added a few at a time; `racing` says which configurations get more.

To the scheduler a configuration is in training until its heat is over. What has lost its heat then stands behind all
that have not, whatever its scores; to samplers and readers it has the aggregate of the seeds that it was trained with.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..storage.rows import Segment, score_of
from ..study.config import BadConfig, Config
from ..study.plan import Plan
from .race_test import FIRST, Heat, race
from .seeds import Replicated, collapse, races, seeds_of

if TYPE_CHECKING:
    from .halving import Halving

SCHEDULERS = ("none", "halving", "hyperband")
Place = tuple[int, int]  # of a heat: bracket and rung


def check_racing(config: Config) -> None:
    """Raises BadConfig if the study's seeds cannot race."""
    if not races(config):
        return
    if config.scheduler not in SCHEDULERS:
        raise BadConfig(
            f"--racing needs configurations that wait for each other, as with --scheduler "
            f"{', '.join(SCHEDULERS)}, but it is {config.scheduler}; leave one out"
        )
    if len(config.options.get("objectives", ())) > 1:
        raise BadConfig("--racing decides who cannot win by one objective, but got several; leave it out")


class Heats(Replicated):
    """The scheduler."""

    def __init__(self, config: Config, scheduler: Halving):
        super().__init__(config, scheduler)
        self.halving = scheduler
        self._starts = [bracket.numbers.start for bracket in scheduler.brackets]
        self._entrants: dict[Place, set[int]] = {}
        self._wanted: dict[Place, Heat] = {}  # heats that want rows
        self._out: set[int] = set()  # configurations that lost their last heat
        self._scores: dict[tuple[int, int], float] = {}  # by configuration and epochs, of those that lost

    def _ends(self, rungs: Iterable[tuple[int, int]]) -> list[Segment]:
        """The segments of configurations, after rows of these (configuration, rung) have come in."""
        heats: set[Place] = set()
        for number, rung in rungs:
            place = bisect_right(self._starts, number) - 1, rung
            self._entrants.setdefault(place, set()).add(number)
            heats.add(place)
        return [row for place in sorted(heats) for row in self._run(place)]

    def _run(self, place: Place) -> Iterable[Segment]:
        entrants, rung = sorted(self._entrants[place]), place[1]
        rows = {n: {row.number % self.seeds: row for row in self._rows[n, rung].values()} for n in entrants}
        heat = race(rows, self.seeds, self.halving.places(rung, len(entrants)) or 1)
        self._wanted.pop(place, None)
        if heat.wanted:
            self._wanted[place] = heat
        if heat.over:
            self._out = self._out.difference(entrants) | heat.out
        for row in collapse(self.config, [], (row for mine in rows.values() for row in mine.values()))[1]:
            if row.state == "done" and not heat.over:
                yield replace(row, state="ready", score=None, digest=None)
            elif row.state == "done" and row.number in heat.out:
                self._scores[row.number, row.epochs] = score_of(row)
                yield replace(row, score=-math.inf)
            else:
                yield row

    def plan(self) -> Plan:
        """What follows from the rows; `ask`, `bracket` and `seen` are of configurations."""
        plan = super().plan()
        plan.segments = [row for row in plan.segments if row.number % self.seeds < FIRST]
        for (_, rung), heat in self._wanted.items():
            numbers = (n * self.seeds + replicate for n, replicate in heat.wanted)
            plan.segments += [Segment(n, rung, self.config.rungs[rung]) for n in numbers if self._runs(n)]
        # The highest rung completes those that have all their seeds.
        lost = self._out
        plan.finished = [(n, "pruned" if n // self.seeds in lost else state) for n, state in plan.finished]
        plan.seen = {
            number: [(epochs, self._scores.get((number, epochs), score)) for epochs, score in scores]
            for number, scores in plan.seen.items()
        }
        plan.complete = plan.complete and not plan
        return plan


def at_once(config: Config) -> int:
    """With how many seeds the training of a configuration begins."""
    return FIRST if races(config) else seeds_of(config)
