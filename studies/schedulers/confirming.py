"""Confirmation: a study's best configurations, trained again on fresh seeds.

A race decides first: all candidates train on a third of its seeds, the better half of them on another third, the best
two on the rest. Then the winner, the runner-up and the defaults train on further seeds, which took no part in any
choice: their returns estimate what each configuration is worth, without a correction for having been chosen. One failed
training puts a candidate out of the race; estimates are of the trainings that did not fail, and say how many did.

Everything follows from finished rows, so a confirmation is the same for any number of workers. The replicates of a
candidate are its seeds, first those of the race. Where a study has several environments, a seed is a training in each
of them, and its result their aggregate on the scale that the search ended with.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.environments import across, is_across, scale_of
from ..study.plan import Plan

CONFIRM = "confirm"  # the scheduler's name in a study's configuration
FINALISTS = 2
EPISODES = 0xC0F1  # seed of the evaluation episodes, which no selection has seen
Rows = Mapping[tuple[int, int], Segment]  # by candidate and replicate


@dataclass(frozen=True)
class Confirmation:
    """The confirmation that the options of a study describe.

    Attributes:
        study: whose best configurations are the candidates.
        candidates: their number.
        defaults: which of them has the default hyperparameters; None if these make no task.
        seeds: of an estimate.
        race_seeds: of the race.
        claims: the score of each candidate in the search, None if it had none; the higher the better.
    """

    study: str
    candidates: int
    defaults: int | None
    seeds: int
    race_seeds: int
    claims: tuple[float | None, ...]

    @classmethod
    def of(cls, config: Config) -> Confirmation:
        """Return the confirmation of a study's configuration."""
        form = config.options["confirms"]
        return cls(
            form["study"],
            config.trials[-1],
            form["defaults"],
            form["seeds"],
            config.options["seeds"] // len(config.environments) - form["seeds"],
            tuple(form["claims"]),
        )

    @property
    def rounds(self) -> list[tuple[int, int]]:
        """(Candidates, seeds so far) of each round of the race."""
        half = max(FINALISTS, -(-self.candidates // 2))
        return [(self.candidates, self.first), (half, -(-2 * self.race_seeds // 3)), (FINALISTS, self.race_seeds)]

    @property
    def first(self) -> int:
        """The number of seeds on which all candidates train."""
        return -(-self.race_seeds // 3)

    @property
    def estimating(self) -> range:
        """The replicates that estimates come from."""
        return range(self.race_seeds, self.race_seeds + self.seeds)


@dataclass
class Standing:
    """Standing of a confirmation.

    Attributes:
        wanted: (candidate, replicate) pairs to train now that have no row yet.
        finalists: the best candidates of the race, best first; empty before it is over.
        estimated: the candidates whose worth is estimated.
        over: whether nothing is left to train.
    """

    wanted: list[tuple[int, int]] = field(default_factory=list)
    finalists: list[int] = field(default_factory=list)
    estimated: list[int] = field(default_factory=list)
    over: bool = False


def episodes_seed(config: Config) -> int | None:
    """Return the seed of evaluation episodes, None for that of searches."""
    return EPISODES if config.scheduler == CONFIRM else None


def by_seed(config: Config, rows: Iterable[Segment]) -> dict[tuple[int, int], Segment]:
    """Return the results of a confirmation's seeds by candidate and seed."""
    if not is_across(config):
        return {(row.configuration, row.replicate): row for row in rows}
    several, together = len(config.environments), dict[int, list[Segment]]()
    for row in rows:
        together.setdefault(row.number // several, []).append(row)
    seeds = config.options["seeds"] // several
    return {divmod(number, seeds): _in_all(config, own) for number, own in together.items()}


def _in_all(config: Config, rows: Sequence[Segment]) -> Segment:
    """Return the result of one seed in all environments."""
    states = {row.state for row in rows}
    if len(rows) < len(config.environments) or "ready" in states:
        return replace(rows[0], state="ready", score=None)
    if "failed" in states:
        return replace(rows[0], state="failed", score=None)
    return replace(rows[0], score=across(config, rows, scale_of(config, ())))


def standing(confirmation: Confirmation, rows: Rows) -> Standing:
    """Return the standing that follows from the rows."""
    alive = list(range(confirmation.candidates))
    for entrants, seeds in confirmation.rounds:
        alive, replicates = alive[:entrants], range(seeds)
        wanted = [(n, s) for n in alive for s in replicates if (n, s) not in rows]
        if wanted or any(rows[n, s].state == "ready" for n in alive for s in replicates):
            return Standing(wanted)
        alive = [n for n in alive if all(rows[n, s].state == "done" for s in replicates)]
        means = {n: statistics.fmean(score_of(rows[n, s]) for s in replicates) for n in alive}
        alive.sort(key=lambda n: (-means[n], n))
    finalists = alive[:FINALISTS]
    defaults = [] if confirmation.defaults is None else [confirmation.defaults]
    estimated = list(dict.fromkeys([*finalists, *defaults])) if finalists else []
    pairs = [(n, s) for n in estimated for s in confirmation.estimating]
    wanted = [pair for pair in pairs if pair not in rows]
    over = not wanted and not any(rows[pair].state == "ready" for pair in pairs)
    return Standing(wanted, finalists, estimated, over)


class Confirming:
    """Scheduler of a confirmation."""

    def __init__(self, config: Config):
        self.config, self.confirmation, self.seeds = config, Confirmation.of(config), int(config.options["seeds"])
        self._trials: dict[int, Trial] = {}
        self._rows: dict[int, Segment] = {}  # by number

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Take new and changed rows of the study into account."""
        self._trials |= {trial.number: trial for trial in trials}
        self._rows |= {row.number: row for row in segments}

    def plan(self) -> Plan:
        """Return the plan that follows from the rows."""
        if len(self._trials) < self.confirmation.candidates * self.seeds:
            return Plan(ask=range(self.confirmation.candidates))
        now = standing(self.confirmation, by_seed(self.config, self._rows.values()))
        epochs, several = self.config.rungs[0], len(self.config.environments)
        wanted = (n * self.seeds + s * several + env for n, s in now.wanted for env in range(several))
        running = [number for number, trial in sorted(self._trials.items()) if trial.state == "running"]
        ends = {number: self._state_at_end(number, now.over) for number in running}
        plan = Plan(
            segments=[Segment(number, 0, epochs, seeds=self.seeds) for number in wanted],
            finished=[(number, state) for number, state in ends.items() if state],
        )
        plan.complete = now.over and not plan
        return plan

    def _state_at_end(self, number: int, over: bool) -> str | None:
        """Return the final state of a running trial, None before its end."""
        row = self._rows.get(number)
        if row is None:
            return "pruned" if over else None
        return "complete" if row.state == "done" else None

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Sort the first seeds first."""
        return segment.replicate, segment.number

    def entrants(self) -> list[int]:
        """Return the expected number of trainings."""
        confirmation, done, trainings = self.confirmation, 0, 0
        for entrants, seeds in confirmation.rounds:
            trainings += min(entrants, confirmation.candidates) * (seeds - done)
            done = seeds
        estimated = min(confirmation.candidates, FINALISTS + (confirmation.defaults is not None))
        return [(trainings + estimated * confirmation.seeds) * len(self.config.environments)]
