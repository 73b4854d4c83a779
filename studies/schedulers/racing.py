"""Racing: configurations that can no longer win get no more seeds.

The configurations that compete, those of one bracket on one rung, race. Each first trains with two seeds, then with one
more per round. After each round a statistical test eliminates configurations (`statistics.friedman`). A race depends on
finished rows alone, so a study is the same for any number of workers.

In a study with several environments, replicates alternate between them: a configuration that loses in the first ones is
not trained in the others.

To the wrapped scheduler, a configuration is in training until its race is over. Eliminated configurations then rank
below all others; samplers and readers see the aggregate over the seeds that they trained with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ..errors import BadConfig
from ..methods import those
from ..statistics.friedman import eliminated
from ..storage.rows import Segment, score_of
from ..study.config import Config
from ..study.environments import FIRST_SEEDS, is_across, scale_of
from ..study.objectives import CONSTRAINT, ranks_by_score
from ..study.plan import Plan, ScoreHistory
from .seeds import SeedScheduler, collapse, is_racing, seeds_of

if TYPE_CHECKING:
    from .halving import Halving


class BracketRung(NamedTuple):
    """A rung of a bracket, whose configurations compete."""

    bracket: int
    rung: int


@dataclass(frozen=True)
class Race:
    """State of a race.

    Attributes:
        wanted: (configuration, replicate) pairs to train now and without a row.
        eliminated: configurations that get no more seeds.
        over: whether the others have all their results.
    """

    wanted: list[tuple[int, int]]
    eliminated: set[int]
    over: bool


def run_race(rows: Mapping[int, Mapping[int, Segment]], seeds: int, promotions: int) -> Race:
    """Compute the state of a race from its rows.

    Args:
        rows: the segments of each configuration, by replicate.
        seeds: maximum number of seeds per configuration.
        promotions: number of configurations to be promoted.
    """
    alive, out = sorted(rows), set[int]()
    for trained in range(FIRST_SEEDS, seeds + 1):
        replicates = range(trained)
        alive = [n for n in alive if not any(rows[n][s].state == "failed" for s in replicates if s in rows[n])]
        wanted = [(n, s) for n in alive for s in replicates if s not in rows[n]]
        if wanted or any(rows[n][s].state == "ready" for n in alive for s in replicates):
            return Race(wanted, out, over=False)
        if trained < seeds:
            lost = eliminated({n: [score_of(rows[n][s]) for s in replicates] for n in alive}, promotions)
            alive, out = [n for n in alive if n not in lost], out | lost
    return Race([], out, over=True)


def check_racing(config: Config) -> None:
    """Raise BadConfig if the study's seeds cannot race."""
    if not is_racing(config):
        return
    if not config.scheduling.races:
        raise BadConfig(
            f"--racing needs configurations that wait for each other, as with --scheduler "
            f"{those('races')}, but it is {config.scheduler}; leave one out"
        )
    if not ranks_by_score(config):
        obstacle = "a constraint" if config.options.get(CONSTRAINT) else "several"
        raise BadConfig(f"--racing decides who cannot win by one objective, but got {obstacle}; leave it out")


class RungScheduler(SeedScheduler):
    """A scheduler of configurations whose results count rung by rung.

    A bracket's results on a rung count when all of them are there. Results of several environments can then be
    normalized to one scale, computed from the bracket's results up to this rung.
    """

    def __init__(self, config: Config, scheduler: Halving):
        super().__init__(config, scheduler)
        self.halving = scheduler

    def _changed(self, rungs: Iterable[tuple[int, int]]) -> list[Segment]:
        """Return the changed segments of configurations.

        Args:
            rungs: (configuration, rung) of each changed row.
        """
        keys = {BracketRung(self.halving.bracket_of(number), rung) for number, rung in rungs}
        if is_across(self.config):  # the scale of higher rungs depends on this one
            all_rungs = range(len(self.config.rungs))
            above = {BracketRung(bracket, rung) for bracket, low in keys for rung in all_rungs[low + 1 :]}
            keys |= {key for key in above if self._entrants(key)}
        return [row for key in sorted(keys) for row in self._visible(key)]

    def _entrants(self, key: BracketRung) -> list[int]:
        """Return the configurations on a rung of a bracket, ascending."""
        return [n for n in self.halving.brackets[key.bracket].numbers if (n, key.rung) in self._rows]

    def _visible(self, key: BracketRung) -> list[Segment]:
        """Return what the wrapped scheduler sees of a rung of a bracket.

        Configurations are in training until all of them have results.
        """
        rows = self._collapsed(key)
        over = len(rows) == len(self._entrants(key)) and all(row.state != "ready" for row in rows)
        return rows if over else [_in_training(row) for row in rows]

    def _collapsed(self, key: BracketRung) -> list[Segment]:
        """Return the segments of configurations on a rung of a bracket.

        Scores are on the scale of the bracket's results up to this rung.
        """
        replicates = [
            [row for n in self._entrants(BracketRung(key.bracket, rung)) for row in self._rows[n, rung].values()]
            for rung in range(key.rung + 1)
        ]
        scale = scale_of(self.config, chain(*replicates)) if is_across(self.config) else None
        return collapse(self.config, [], replicates[-1], scale)[1]

    def plan(self) -> Plan:
        """Return the plan that follows from the rows.

        The numbers in `ask`, `bracket` and `seen` are those of configurations.
        """
        plan = super().plan()
        plan.seen = self._compared(plan.seen)
        return plan

    def _compared(self, score_history: ScoreHistory) -> ScoreHistory:
        """Return a score history in which all scores share one scale.

        A configuration that lost a race has the score over the seeds that it trained with.
        """
        rung_of = {epochs: rung for rung, epochs in enumerate(self.config.rungs)}
        results = ((number, rung_of[epochs]) for number, scores in score_history.items() for epochs, _ in scores)
        rows = collapse(self.config, [], (row for key in results for row in self._rows[key].values()))[1]
        compared: ScoreHistory = {number: [] for number in score_history}
        for row in rows:  # of one configuration, lower rungs first
            if row.state == "done":
                compared[row.number].append((row.epochs, score_of(row)))
        return compared


def _in_training(row: Segment) -> Segment:
    return row if row.state != "done" else replace(row, state="ready", score=None, digest=None)


class RacingScheduler(RungScheduler):
    """A scheduler of configurations that get more seeds while they can win."""

    def __init__(self, config: Config, scheduler: Halving):
        super().__init__(config, scheduler)
        self._races: dict[BracketRung, Race] = {}  # as the rows of each are now

    def _visible(self, key: BracketRung) -> list[Segment]:
        """Return what the wrapped scheduler sees of a race, after running it.

        Configurations are in training until it is over; those that it eliminated then rank below all others.
        """
        entrants, configurations = self._entrants(key), self._collapsed(key)
        rows = {n: {row.replicate: row for row in self._rows[n, key.rung].values()} for n in entrants}
        race = run_race(rows, self.seeds, self.halving.promotions(key.rung, len(entrants)) or 1)
        self._races[key] = race
        if not race.over:
            return [_in_training(row) for row in configurations]
        return [
            replace(row, score=-math.inf) if row.state == "done" and row.number in race.eliminated else row
            for row in configurations
        ]

    def _lost_at_top(self, number: int) -> bool:
        """Return whether a configuration lost its race on the top rung."""
        key = BracketRung(self.halving.bracket_of(number), len(self.config.rungs) - 1)
        return number in self._races[key].eliminated

    def plan(self) -> Plan:
        """Return the plan that follows from the rows.

        The numbers in `ask`, `bracket` and `seen` are those of configurations.
        """
        plan = super().plan()
        plan.segments = [row for row in plan.segments if row.replicate < FIRST_SEEDS]
        for key in sorted(key for key, race in self._races.items() if race.wanted):
            numbers = (self._of(n)[replicate] for n, replicate in self._races[key].wanted)
            epochs = self.config.rungs[key.rung]
            plan.segments += [Segment(n, key.rung, epochs, seeds=self.seeds) for n in numbers if self._runs(n)]
        # The wrapped scheduler completes all trials on the top rung; those that lost their race are pruned instead.
        plan.finished = [
            (n, "pruned" if state == "complete" and self._lost_at_top(self._trials[n].configuration) else state)
            for n, state in plan.finished
        ]
        plan.complete = plan.complete and not plan
        return plan


def at_once(config: Config) -> int:
    """Return the number of seeds that a configuration starts with."""
    if config.scheduling.confirms:
        return 0  # the confirmation's race decides
    return FIRST_SEEDS if is_racing(config) else seeds_of(config)
