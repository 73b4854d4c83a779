"""Schedulers and their plans: pure functions of a study's rows.

Any worker computes the same plan from the same rows, and adds the rows that are missing. A study therefore needs no
leader and no lock. A plan may depend only on results that no longer change and that every worker will eventually read,
whatever else finishes in between. Under this condition, a study has the same bits with any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ..storage.rows import Segment, Trial

ScoreHistory = dict[int, list[tuple[int, float]]]  # (epochs, score) of each trial's rungs, rising


@dataclass(frozen=True)
class Branch:
    """A trial that starts from another's state, with other hyperparameters.

    Attributes:
        number: number of the new trial.
        configuration: configuration of which the new trial is a replicate.
        start: finished segment whose state it starts from.
        member: member of the population that it replaces.
        generation: first generation in which it trains.
    """

    number: int
    configuration: int
    start: Segment
    member: int
    generation: int


@dataclass
class Plan:
    """The rows that follow from those of a study.

    Attributes:
        segments: segments to add, after the new trials.
        finished: (number, state) of trials that end.
        ask: numbers of the trials to suggest next, or None.
        bracket: bracket of these trials.
        rung: first rung to which these trials train.
        seen: scores on which the suggestions may depend; a failed trial has none.
        branches: trials to branch from others.
        complete: whether nothing is left to do.
        exact: whether the plan is valid only as long as no row changes.
    """

    segments: list[Segment] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    ask: range | None = None
    bracket: int = 0
    rung: int = 0
    seen: ScoreHistory = field(default_factory=dict)
    branches: list[Branch] = field(default_factory=list)
    complete: bool = False
    exact: bool = False

    @property
    def makes_trials(self) -> bool:
        """True if the plan has new trials, which take long to create."""
        return bool(self.ask or self.branches)

    def __bool__(self) -> bool:
        """Return whether the plan changes any row."""
        return bool(self.segments or self.finished or self.makes_trials)


class Scheduler(Protocol):
    """Rule that decides a study's trials and the epochs of each.

    A scheduler observes every row once, and again when the row has changed. The cost of a plan therefore depends on the
    changes, not on the size of the study. The scheduler's state depends on the rows alone: rows in any order and any
    portions (a trial no later than its segments) lead to the same plan.
    """

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Observe new or changed rows."""

    def plan(self) -> Plan:
        """Return the plan that follows from the observed rows."""

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Return a sort key that puts segments first on which others wait."""

    def entrants(self) -> list[int]:
        """Return the expected number of trials on each rung."""
