"""Several seeds per configuration, whose score is an aggregate over them.

Every replicate is a trial with its own task, checkpoints and segments. The replicates of a configuration have the same
structure, so they train as one cohort. The wrapped scheduler sees configurations only: a segment of a configuration is
done when those of all replicates are, and the plan for a configuration applies to each of its replicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..errors import BadConfig
from ..options.entries import check_count
from ..statistics.estimates import FEWEST
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config, choose
from ..study.environments import FIRST_SEEDS, Scale, across, as_objective, is_across, scale_of
from ..study.objectives import AGGREGATES, MINIMIZE, bounded_means, constraints_of, objectives_of, value_of
from ..study.plan import Plan, Scheduler
from ..study.stored_form import MOST_SEEDS
from .confirming import Confirmation, estimating_rows, first_seed, lost_seeds


def seed_options(seeds: int, aggregate: str, racing: bool = False) -> dict[str, Any]:
    """Return the options of a study with several seeds per configuration.

    Raises:
        BadConfig: a value is invalid.
    """
    check_count("seeds", seeds, MOST_SEEDS)
    choose("aggregate", aggregate, list(AGGREGATES))
    if racing and seeds <= FIRST_SEEDS:
        raise BadConfig(
            f"--racing saves seeds after the first {FIRST_SEEDS}, but --seeds is {seeds}; ask for more seeds"
        )
    options = {"seeds": seeds, "aggregate": aggregate} if seeds > 1 else {}
    return options | ({"racing": True} if racing else {})


def seeds_of(config: Config) -> int:
    """Return the number of replicates per configuration: seeds times environments."""
    return int(config.options.get("seeds", 1))


def is_racing(config: Config) -> bool:
    """Return whether configurations get further seeds only while they can win."""
    return config.options.get("racing") is True


def replicate_seed(config: Config, replicate: int) -> int:
    """Return the seed of a replicate.

    Confirmations have seeds that no search uses, nor an earlier confirmation.
    """
    n = replicate // len(config.environments)
    if "confirms" not in config.options:
        return config.seed + n
    from ...tasks.rng import streams  # slow to import (NumPy)

    return int(streams.key(config.seed, "confirm", first_seed(config) + n)) >> 1


def collapse(
    config: Config, trials: Iterable[Trial], segments: Iterable[Segment], scale: Scale | None = None
) -> tuple[list[Trial], list[Segment]]:
    """Replace replicates by their configurations.

    Schedulers, samplers and readers see configurations only. A segment is included when enough of its replicates have
    rows: all of them, or the first seeds of a race. The result of a confirmation's candidate is its estimate.

    Args:
        config: the study's configuration.
        trials: the study's trials.
        segments: the study's segments.
        scale: normalizes results of several environments; None to compute it from these segments.
    """
    seeds = seeds_of(config)
    if seeds == 1:
        return list(trials), list(segments)
    members: dict[int, list[Trial]] = {}
    for trial in trials:
        members.setdefault(trial.configuration, []).append(trial)
    rows: dict[tuple[int, int], list[Segment]] = {}
    for row in segments:
        rows.setdefault((row.configuration, row.rung), []).append(row)
    complete = FIRST_SEEDS if is_racing(config) else seeds
    if is_across(config) and scale is None:
        scale = scale_of(config, (row for group in rows.values() for row in group))
    configurations = [
        _configuration(config, number, group) for number, group in sorted(members.items()) if len(group) == seeds
    ]
    if config.scheduling.confirms:
        estimates = (_estimate(config, number, group) for (number, _), group in sorted(rows.items()))
        return configurations, [estimate for estimate in estimates if estimate is not None]
    groups = [(number, group) for (number, _), group in sorted(rows.items()) if len(group) >= complete]
    return configurations, [_segment(config, number, group, scale) for number, group in groups]


def _configuration(config: Config, number: int, group: Sequence[Trial]) -> Trial:
    first = min(group, key=lambda trial: trial.number)
    error = next((trial.error for trial in group if trial.error), None)
    attrs = dict(first.attrs)
    if "parent" in attrs:
        attrs["parent"] //= seeds_of(config)
    return replace(first, number=number, seeds=1, state=_state(config, group), error=error, attrs=attrs)


def _state(config: Config, group: Sequence[Trial]) -> str:
    """Return the state of a configuration.

    A confirmation's candidate with an estimate is complete, whichever of its trainings failed.
    """
    states = {trial.state for trial in group}
    if config.scheduling.confirms and "running" not in states:
        lost = lost_seeds(config, {trial.replicate: trial.state for trial in group})
        if Confirmation.of(config).seeds - len(lost) >= FEWEST:
            return "complete"
        states.discard("complete")  # it has only trained for the race, which it lost
    return next((state for state in ("running", "failed", "cancelled", "complete") if state in states), "pruned")


def _segment(config: Config, number: int, group: Sequence[Segment], scale: Scale | None) -> Segment:
    first = replace(min(group, key=lambda row: row.number), number=number, seeds=1, eval_error=None)
    state = next((state for state in ("ready", "failed") if any(row.state == state for row in group)), "done")
    if state != "done":
        return replace(first, state=state, score=None, objectives=None, digest=None)
    if scale is not None:
        score = across(config, group, scale)
        objectives = _across(config, score, group)
        return replace(first, state=state, score=score, objectives=objectives)
    aggregate = AGGREGATES[config.options["aggregate"]]
    score = aggregate([score_of(row) for row in group])
    objectives = _objectives(config, group, aggregate)
    return replace(first, state=state, score=score, objectives=objectives)


def _estimate(config: Config, number: int, group: Sequence[Segment]) -> Segment | None:
    """Return a candidate's estimate; None until its fresh seeds are trained.

    The seeds of the race selected the winner, so its results on them are too high, and none counts here.
    """
    if (rows := estimating_rows(config, group)) is None:
        return None
    first = replace(min(group, key=lambda row: row.number), number=number, seeds=1, eval_error=None)
    done = [row for row in rows if row.state == "done"]
    if len(done) < FEWEST:
        return replace(first, state="failed", score=None, objectives=None, digest=None)
    score = AGGREGATES["mean"]([score_of(row) for row in done])
    mean = AGGREGATES["mean"]
    objectives = _across(config, score, done) if is_across(config) else _objectives(config, done, mean)
    return replace(first, state="done", score=score, objectives=objectives)


def _objectives(
    config: Config, group: Sequence[Segment], aggregate: Callable[[Sequence[float]], float]
) -> dict[str, float] | None:
    """Return the aggregate of each objective, None if none was measured.

    Minimized objectives change their sign for the aggregation, so that the highest value is always the best. A
    constraint holds for the mean, unless it bounds an objective.
    """
    measured = [row.objectives for row in group if row.objectives]
    if not measured:
        return None
    directions, means = objectives_of(config), bounded_means(constraints_of(config), group)
    signs = {name: -1 if directions.get(name) == MINIMIZE else 1 for name in measured[0]}
    values = {name: [sign * value_of(row, name) for row in measured] for name, sign in signs.items()}
    aggregates = {name: signs[name] * aggregate(numbers) for name, numbers in values.items()}
    return aggregates | {name: mean for name, mean in means.items() if name not in directions}


def _across(config: Config, score: float, group: Sequence[Segment]) -> dict[str, float] | None:
    """Return the objective on one scale, and means of bounded metrics."""
    means = bounded_means(constraints_of(config), group)
    return means | as_objective(config, score) if group[0].objectives else None


class SeedScheduler:
    """A scheduler of replicates that wraps a scheduler of configurations."""

    def __init__(self, config: Config, scheduler: Scheduler):
        self.config, self.scheduler, self.seeds = config, scheduler, seeds_of(config)
        self._trials: dict[int, Trial] = {}
        self._rows: dict[tuple[int, int], dict[int, Segment]] = {}  # by configuration and rung
        self._failed: set[int] = set()  # configurations that stop because one of their replicates failed

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Pass new and changed configurations to the wrapped scheduler."""
        numbers, rungs = set(), set()
        for trial in trials:
            self._trials[trial.number] = trial
            numbers.add(trial.configuration)
        for row in segments:
            rung = (row.configuration, row.rung)
            self._rows.setdefault(rung, {})[row.number] = row
            rungs.add(rung)
        replicates = (self._trials[n] for number in numbers for n in self._of(number) if n in self._trials)
        configurations, changed = collapse(self.config, replicates, [])[0], self._changed(rungs)
        self._failed |= {row.number for row in changed if row.state == "failed"}
        self.scheduler.observe(configurations, changed)

    def _changed(self, rungs: Iterable[tuple[int, int]]) -> list[Segment]:
        """Return the changed segments of configurations.

        Args:
            rungs: (configuration, rung) of each changed row.
        """
        return collapse(self.config, [], (row for rung in rungs for row in self._rows[rung].values()))[1]

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Return the sort key of a segment: its configuration's, then its number."""
        first, _ = self.scheduler.priority(replace(segment, number=segment.configuration, seeds=1))
        return first, segment.number

    def entrants(self) -> list[int]:
        """Return the expected number of trials on each rung."""
        return [self.seeds * count for count in self.scheduler.entrants()]

    def plan(self) -> Plan:
        """Return the plan that follows from the rows.

        The numbers in `ask`, `bracket` and `seen` are those of configurations.
        """
        plan = self.scheduler.plan()
        self._failed = {number for number in self._failed if any(map(self._runs, self._of(number)))}
        ended = {**dict(plan.finished), **dict.fromkeys(sorted(self._failed), "pruned")}  # a seed missing: no score
        plan.finished = [(n, state) for number, state in ended.items() for n in self._of(number) if self._runs(n)]
        plan.segments = [
            replace(row, number=n, seeds=self.seeds) for row in plan.segments for n in self._of(row.number)
        ]
        plan.branches = [
            replace(branch, number=n, start=self._rows[branch.start.number, branch.start.rung][start])
            for branch in plan.branches
            for n, start in zip(self._of(branch.number), self._of(branch.start.number), strict=True)
        ]
        plan.complete = plan.complete and not plan
        return plan

    def _of(self, number: int) -> range:
        return range(number * self.seeds, (number + 1) * self.seeds)

    def _runs(self, number: int) -> bool:
        return self._trials[number].state == "running"
