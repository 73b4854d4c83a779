"""Confirmation: a study's best configurations, trained again with fresh seeds.

First the candidates race: all of them train with a third of the race's seeds, the better half with another third, and
the best two with the rest. A candidate's result in the search counts as one more seed; what constraints bound, in the
race alone. Then the winner, the runner-up and the default configuration train with further seeds, which were used for
no selection: the mean of their returns is an estimate without selection bias. A candidate with a failed training leaves
the race; estimates use the trainings that did not fail, and report how many did. Where a single candidate is left,
nothing remains to choose, and the race ends.

Everything follows from finished rows, so a confirmation is the same for any number of workers. The replicates of a
candidate are its seeds, those of the race first. In a study with several environments, each seed is trained in each of
them; its result is the aggregate, on the scale with which the search ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...tasks.runtime import EVALUATION_SEED
from ..options.constraints import Constraint
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.environments import across, is_across, scale_of
from ..study.objectives import bounded_means, constraints_of, violation
from ..study.plan import Plan

FINALISTS = 2
FIRST = "first"  # key in its options: the number of seeds that earlier confirmations of the study used
USED = "confirmed"  # key in the options of a study: the number of seeds that its deleted confirmations used
EPISODES = 0xC0F1  # seed of evaluation episodes that no search uses
BY_SEED = "episodes_by_seed"  # key in its options: true if each seed has its own; missing in earlier ones
LOST = ("failed", "cancelled", "pruned")  # states of trainings that have ended without a result
Rows = Mapping[tuple[int, int], Segment]  # by candidate and replicate


@dataclass(frozen=True)
class Confirmation:
    """Confirmation settings, read from a study's options.

    Attributes:
        study: name of the study whose best configurations are the candidates.
        candidates: number of candidates.
        defaults: index of the candidate with the default hyperparameters; None if those are invalid for the task.
        seeds: number of seeds for an estimate.
        race_seeds: number of seeds of the race.
        claims: each candidate's score in the search, None without one; higher is better.
        claims_race: whether claims count in the race; in confirmations of earlier versions they do not.
        trials: each candidate's number in the study, None for the defaults.
        constraints: bounds of the means of further metrics, by which candidates rank first.
    """

    study: str
    candidates: int
    defaults: int | None
    seeds: int
    race_seeds: int
    claims: tuple[float | None, ...]
    claims_race: bool = True
    trials: tuple[int | None, ...] = ()
    constraints: Sequence[Constraint] = ()

    @classmethod
    def of(cls, config: Config) -> Confirmation:
        """Read the confirmation from a study's configuration."""
        form = config.options["confirms"]
        return cls(
            form["study"],
            config.trials[-1],
            form["defaults"],
            form["seeds"],
            config.options["seeds"] // len(config.environments) - form["seeds"],
            tuple(form["claims"]),
            form.get("claims_race", False),
            tuple(form["trials"]),
            constraints_of(config),
        )

    @property
    def rounds(self) -> list[tuple[int, int]]:
        """(Candidates, total seeds) of each round of the race."""
        half = max(FINALISTS, -(-self.candidates // 2))
        return [(self.candidates, self.first), (half, -(-2 * self.race_seeds // 3)), (FINALISTS, self.race_seeds)]

    @property
    def first(self) -> int:
        """Number of seeds with which all candidates train."""
        return -(-self.race_seeds // 3)

    def earlier_scores(self, candidate: int) -> list[float]:
        """Return scores that count in the race beside fresh ones."""
        claim = self.claims[candidate] if self.claims_race else None
        return [] if claim is None else [claim]

    @property
    def estimating(self) -> range:
        """Replicates used for the estimates."""
        return range(self.race_seeds, self.race_seeds + self.seeds)


@dataclass
class Standing:
    """Progress of a confirmation.

    Attributes:
        wanted: (candidate, replicate) pairs to train now and without a row.
        finalists: the best candidates, best first; empty until the race is over.
        estimated: candidates that train for the estimates.
        over: whether nothing is left to train.
    """

    wanted: list[tuple[int, int]] = field(default_factory=list)
    finalists: list[int] = field(default_factory=list)
    estimated: list[int] = field(default_factory=list)
    over: bool = False


def first_seed(config: Config) -> int:
    """Return the index of the first seed of a confirmation."""
    return int(config.options["confirms"].get(FIRST, 0))


def first_unused(config: Config) -> int:
    """Return the index of the first seed after those of a confirmation."""
    return first_seed(config) + int(config.options["seeds"]) // len(config.environments)


def episodes_seed(config: Config, seed: int) -> int:
    """Return the seed of the evaluation episodes of a training.

    In a search all play the same ones. In a confirmation each seed has its own, so that the spread over seeds contains
    that of episodes; candidates are compared on the same.

    Args:
        config: the study's configuration.
        seed: seed of the training.
    """
    if not config.scheduling.confirms:
        return EVALUATION_SEED
    if not has_own_episodes(config):
        return EPISODES
    from ...tasks.rng import streams  # slow to import (NumPy)

    return streams.seed_of(EPISODES, seed)


def has_own_episodes(config: Config) -> bool:
    """Return whether each seed has evaluation episodes of its own."""
    return config.scheduling.confirms and bool(config.options["confirms"].get(BY_SEED))


def by_seed(config: Config, rows: Iterable[Segment]) -> dict[tuple[int, int], Segment]:
    """Return a confirmation's results by (candidate, seed)."""
    if not is_across(config):
        return {(row.configuration, row.replicate): row for row in rows}
    several, together = len(config.environments), dict[int, list[Segment]]()
    for row in rows:
        together.setdefault(row.number // several, []).append(row)
    seeds = config.options["seeds"] // several
    return {divmod(number, seeds): _in_all(config, group) for number, group in together.items()}


def _in_all(config: Config, rows: Sequence[Segment]) -> Segment:
    """Combine the results of one seed in all environments."""
    states = {row.state for row in rows}
    if len(rows) < len(config.environments) or "ready" in states:
        return replace(rows[0], state="ready", score=None)
    if "failed" in states:
        return replace(rows[0], state="failed", score=None)
    means = bounded_means(constraints_of(config), rows)
    return replace(rows[0], score=across(config, rows, scale_of(config, ())), objectives=means or rows[0].objectives)


def fresh_rows(rows: Rows, candidate: int, replicates: range) -> list[Segment]:
    """Return a candidate's results on these seeds, without failed trainings."""
    finished = [rows[candidate, s] for s in replicates if (candidate, s) in rows]
    return [row for row in finished if row.state == "done"]


def fresh_scores(rows: Rows, candidate: int, replicates: range) -> list[float]:
    """Return a candidate's scores on these seeds, without failed trainings."""
    return [score_of(row) for row in fresh_rows(rows, candidate, replicates)]


def winner_of(config: Config, rows: Iterable[Segment]) -> int | None:
    """Return the winner of the race; None before the end."""
    now = standing(Confirmation.of(config), by_seed(config, rows))
    return now.finalists[0] if now.over and now.finalists else None


def estimates(config: Config, replicate: int) -> bool:
    """Return whether a replicate of a candidate counts in its estimate."""
    return replicate // len(config.environments) in Confirmation.of(config).estimating


def lost_seeds(config: Config, states: Mapping[int, str]) -> set[int]:
    """Return the seeds of a candidate's estimate that do not count.

    A seed does not count if one of its trainings, in whichever environment, has ended without a result.

    Args:
        config: configuration of the confirmation.
        states: states of the candidate's trainings by replicate.
    """
    lost = {replicate for replicate, state in states.items() if state in LOST and estimates(config, replicate)}
    return {replicate // len(config.environments) for replicate in lost}


def estimating_rows(config: Config, group: Iterable[Segment]) -> list[Segment] | None:
    """Return the rows that estimate a candidate; None until all are known.

    `group` are all rows of the candidate. Rows of several environments are combined seed by seed.
    """
    pairs = {replicate: row for (_, replicate), row in by_seed(config, group).items()}
    rows = [pairs.get(replicate) for replicate in Confirmation.of(config).estimating]
    begun = [row for row in rows if row is not None and row.state != "ready"]
    return begun if len(begun) == len(rows) else None


def standing(confirmation: Confirmation, rows: Rows) -> Standing:
    """Compute the progress of a confirmation from its rows."""
    alive = list(range(confirmation.candidates))
    for entrants, seeds in confirmation.rounds:
        if len(alive) < 2:
            break
        alive, replicates = alive[:entrants], range(seeds)
        wanted = [(n, s) for n in alive for s in replicates if (n, s) not in rows]
        if wanted or any(rows[n, s].state == "ready" for n in alive for s in replicates):
            return Standing(wanted)
        alive = [n for n in alive if all(rows[n, s].state == "done" for s in replicates)]
        results, constraints = {n: [rows[n, s] for s in replicates] for n in alive}, confirmation.constraints
        means = {
            n: statistics.fmean(confirmation.earlier_scores(n) + [score_of(row) for row in results[n]]) for n in alive
        }
        violations = {n: violation(constraints, bounded_means(constraints, results[n])) for n in alive}
        alive.sort(key=lambda n: (violations[n], -means[n], n))
    finalists = alive[:FINALISTS]
    defaults = [] if confirmation.defaults is None else [confirmation.defaults]
    estimated = list(dict.fromkeys([*finalists, *defaults])) if finalists else []
    pairs = [(n, s) for n in estimated for s in confirmation.estimating]
    wanted = [pair for pair in pairs if pair not in rows]
    over = not wanted and all(row.state != "ready" for row in rows.values())
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
        """Return the sort key of a segment: lower seeds first."""
        return segment.replicate, segment.number

    def entrants(self) -> list[int]:
        """Return the expected number of trainings, as a list of one."""
        confirmation, done, trainings = self.confirmation, 0, 0
        for entrants, seeds in confirmation.rounds if confirmation.candidates > 1 else ():
            trainings += entrants * (seeds - done)
            done = seeds
        estimated = min(confirmation.candidates, FINALISTS + (confirmation.defaults is not None))
        return [(trainings + estimated * confirmation.seeds) * len(self.config.environments)]
