"""Schedulers and their plans: pure functions of a study's rows.

Any worker computes the same plan from the same rows, and rows are added if absent, so a study needs no leader and no
lock. A plan may depend only on results that no longer change and that every worker will read eventually, whatever else
finishes in between; then a study is the same bits for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ..storage.rows import Segment, Trial

ScoreHistory = dict[int, list[tuple[int, float]]]  # by trial: (epochs, score) of its rungs, rising


@dataclass(frozen=True)
class Branch:
    """A trial that starts from another one's state, with other hyperparameters.

    Attributes:
        number: of the new trial.
        configuration: whose replicate the new trial is.
        start: the finished segment whose state it takes.
        member: whose place in the population it takes.
        generation: the first that it trains in.
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
        segments: to add, after the new trials.
        finished: (number, state) of trials that end.
        ask: numbers of the trials to suggest next, or None.
        bracket: of these trials.
        rung: that these trials train to first.
        seen: scores that the suggestions may depend on; a failed trial has none.
        branches: trials to branch from others.
        complete: whether nothing is left to do.
        exact: whether the plan holds only as long as no row changes.
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
        """True if the plan has new trials, which are slow to make."""
        return bool(self.ask or self.branches)

    def __bool__(self) -> bool:
        """Return whether the plan changes any row."""
        return bool(self.segments or self.finished or self.makes_trials)


class Scheduler(Protocol):
    """Rule that decides a study's trials and the epochs of each.

    It observes every row once, and again when it has changed, so that the cost of a plan depends on the changes and not
    on the size of the study. Its state follows from the rows alone: rows in any order and in any portions (a trial no
    later than its segments) lead to the same plan.
    """

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Observe rows that are new or have changed."""

    def plan(self) -> Plan:
        """Return the plan that follows from the observed rows."""

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Return a sort key that puts segments blocking others first."""

    def entrants(self) -> list[int]:
        """Return the expected number of trials on each rung."""
