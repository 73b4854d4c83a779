"""What a scheduler is: a pure function of a study's rows.

Any worker computes the same plan from the same rows, and rows are added if absent, so there is no leader, no lock and
nothing to lose. A plan may follow only from results that no longer change and that every worker will see sooner or
later, whatever else is finished in between; then a study is the same bits for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ..storage.rows import Segment, Trial

Seen = dict[int, list[tuple[int, float]]]  # by trial: (epochs, score) of its rungs, rising


@dataclass(frozen=True)
class Branch:
    """A trial that starts from the state at the end of another one's segment, with other hyperparameters.

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
    """What follows from the rows.

    Attributes:
        segments: to be added, once the new trials are.
        finished: (number, state) of trials that go no further.
        ask: numbers of the trials to be suggested next, or None; they are bracket number `bracket`, and train to rung
            number `rung` first.
        seen: what these suggestions may depend on; a failed trial has no score.
        branches: trials to be branched from others.
        complete: whether nothing is left to do.
        exact: whether it holds only as long as no row changes.
    """

    segments: list[Segment] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    ask: range | None = None
    bracket: int = 0
    rung: int = 0
    seen: Seen = field(default_factory=dict)
    branches: list[Branch] = field(default_factory=list)
    complete: bool = False
    exact: bool = False

    @property
    def makes_trials(self) -> bool:
        """Whether there are new trials, which take a while to make."""
        return bool(self.ask or self.branches)

    def __bool__(self) -> bool:
        """Whether there is something to add or to end."""
        return bool(self.segments or self.finished or self.makes_trials)


class Scheduler(Protocol):
    """Decides which trials there are, and how far each is trained. Made for one configuration.

    It is told of every row, and again of those that have changed, so that a plan costs what has changed and not what
    there is. What it remembers follows from the rows alone: told the same rows in any order and in any portions (a
    trial no later than its segments), it plans the same.
    """

    def observe(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Takes rows of the study into account that are new or have changed."""

    def plan(self) -> Plan:
        """What follows from the rows; the same again until others are observed."""

    def priority(self, segment: Segment) -> tuple[int, int]:
        """Sorts ready segments so that those that the others wait for come first."""

    def entrants(self) -> list[int]:
        """How many trials train to each rung, if none fails."""
