"""Seeds as a fidelity: a configuration is trained with several seeds, and its score is an aggregate of theirs.

Every replicate is a trial of its own, with a task, checkpoints and segments of its own; those of one configuration have
the same structure, so they train as one cohort. A scheduler sees configurations: replicate s of configuration n is
trial n * seeds + s, a configuration's segment is done when those of all its replicates are, and what follows for a
configuration follows for each of its replicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..storage.rows import Segment, Trial, score_of
from ..study.config import BadConfig, Config, check_count, choose
from ..study.objectives import AGGREGATES, MINIMIZE, objectives_of, value_of
from ..study.plan import Branch, Plan, Scheduler
from .race_test import FIRST


def seed_options(seeds: int, aggregate: str, racing: bool = False) -> dict[str, Any]:
    """The options of a study whose configurations are trained with so many seeds; BadConfig if they make no sense."""
    check_count("seeds", seeds)
    choose("aggregate", aggregate, list(AGGREGATES))
    if racing and seeds <= FIRST:
        raise BadConfig(f"--racing saves seeds after the first {FIRST}, but --seeds is {seeds}; ask for more seeds")
    options = {"seeds": seeds, "aggregate": aggregate} if seeds > 1 else {}
    return options | ({"racing": True} if racing else {})


def seeds_of(config: Config) -> int:
    """With how many seeds each configuration is trained."""
    return int(config.options.get("seeds", 1))


def races(config: Config) -> bool:
    """Whether a configuration gets further seeds only while it can win."""
    return config.options.get("racing") is True


def collapse(config: Config, trials: Iterable[Trial], segments: Iterable[Segment]) -> tuple[list[Trial], list[Segment]]:
    """Configurations in the place of their replicates, as a scheduler, a sampler and a reader see them."""
    seeds = seeds_of(config)
    if seeds == 1:
        return list(trials), list(segments)
    members: dict[int, list[Trial]] = {}
    for trial in trials:
        members.setdefault(trial.number // seeds, []).append(trial)
    rows: dict[tuple[int, int], list[Segment]] = {}
    for row in segments:
        rows.setdefault((row.number // seeds, row.rung), []).append(row)
    complete = FIRST if races(config) else seeds
    return (
        [_configuration(number, group, seeds) for number, group in sorted(members.items()) if len(group) == seeds],
        [_segment(config, number, group) for (number, _), group in sorted(rows.items()) if len(group) >= complete],
    )


def _configuration(number: int, group: Sequence[Trial], seeds: int) -> Trial:
    first = min(group, key=lambda trial: trial.number)
    states = [trial.state for trial in group]
    state = next((state for state in ("running", "failed") if state in states), first.state)
    error = next((trial.error for trial in group if trial.error), None)
    attrs = dict(first.attrs)
    if "parent" in attrs:
        attrs["parent"] //= seeds
    return replace(first, number=number, state=state, error=error, attrs=attrs)


def _segment(config: Config, number: int, group: Sequence[Segment]) -> Segment:
    first = min(group, key=lambda row: row.number)
    state = next((state for state in ("ready", "failed") if any(row.state == state for row in group)), "done")
    if state != "done":
        return replace(first, number=number, state=state, score=None, objectives=None, digest=None)
    aggregate = AGGREGATES[config.options["aggregate"]]
    score = aggregate([score_of(row) for row in group])
    return replace(first, number=number, state=state, score=score, objectives=_objectives(config, group, aggregate))


def _objectives(
    config: Config, group: Sequence[Segment], aggregate: Callable[[Sequence[float]], float]
) -> dict[str, float] | None:
    """The aggregate of each objective, in which the highest is the best: of those to be minimized, of the negatives."""
    measured = [row.objectives for row in group if row.objectives]
    if not measured:
        return None
    signs = {name: -1 if objectives_of(config).get(name) == MINIMIZE else 1 for name in measured[0]}
    return {name: sign * aggregate([sign * value_of(each, name) for each in measured]) for name, sign in signs.items()}


class Replicated:
    """A scheduler of configurations as one of their replicates."""

    def __init__(self, config: Config, scheduler: Scheduler):
        self.config, self.scheduler, self.seeds = config, scheduler, seeds_of(config)
        self._trials: dict[int, dict[int, Trial]] = {}  # by configuration: its replicates
        self._rows: dict[tuple[int, int], dict[int, Segment]] = {}  # by configuration and rung
        self._lost: set[int] = set()  # configurations that go no further, as one of their seeds has failed

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Tells the scheduler of the configurations that are new or have changed."""
        numbers, rungs = set(), set()
        for trial in trials:
            number = trial.number // self.seeds
            self._trials.setdefault(number, {})[trial.number] = trial
            numbers.add(number)
        for row in segments:
            rung = (row.number // self.seeds, row.rung)
            self._rows.setdefault(rung, {})[row.number] = row
            rungs.add(rung)
        replicates = (trial for number in numbers for trial in self._trials[number].values())
        seen, ends = collapse(self.config, replicates, [])[0], self._ends(rungs)
        self._lost |= {row.number for row in ends if row.state == "failed"}
        self.scheduler.observe(seen, ends)

    def _ends(self, rungs: Iterable[tuple[int, int]]) -> list[Segment]:
        """The segments of configurations, after rows of these (configuration, rung) have come in."""
        return collapse(self.config, [], (row for rung in rungs for row in self._rows[rung].values()))[1]

    def priority(self, segment: Segment) -> tuple[int, int]:
        """That of its configuration."""
        first, _ = self.scheduler.priority(replace(segment, number=segment.number // self.seeds))
        return first, segment.number

    def entrants(self) -> list[int]:
        """How many trials train to each rung, if none fails."""
        return [self.seeds * count for count in self.scheduler.entrants()]

    def plan(self) -> Plan:
        """What follows from the rows; `ask`, `bracket` and `seen` are of configurations."""
        plan = self.scheduler.plan()
        self._lost = {number for number in self._lost if any(map(self._runs, self._of(number)))}
        ended = {**dict(plan.finished), **dict.fromkeys(sorted(self._lost), "pruned")}  # without one seed no score
        plan.finished = [(n, state) for number, state in ended.items() for n in self._of(number) if self._runs(n)]
        plan.segments = [replace(row, number=n) for row in plan.segments for n in self._of(row.number)]
        plan.branches = [
            Branch(n, self._rows[branch.start.number, branch.start.rung][start], branch.member, branch.generation)
            for branch in plan.branches
            for n, start in zip(self._of(branch.number), self._of(branch.start.number), strict=True)
        ]
        plan.complete = plan.complete and not plan
        return plan

    def _of(self, number: int) -> range:
        return range(number * self.seeds, (number + 1) * self.seeds)

    def _runs(self, number: int) -> bool:
        return self._trials[number // self.seeds][number].state == "running"
