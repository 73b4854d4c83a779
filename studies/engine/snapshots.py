"""Progress of a study, counted incrementally from the rows that changed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..schedulers.confirming import winner_of
from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, seeds_of
from ..storage.commands import Command
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.environments import is_across
from ..study.objectives import measured, worth, worths
from ..study.repeats import means, origin, unreliable
from .study_rows import StudyRows
from .trial_views import RUNNING, WAITING, origins

if TYPE_CHECKING:
    from ..storage.store import Store

WINDOW, FEWEST = 8.0, 4  # seconds and epochs over which speed is measured, whichever takes longer
SHOWN = 40  # trials whose states are listed
OPEN = "open"  # state of a trial that is not suggested yet
WHOLE = ("complete", "pruned")  # a trial in these states has trained all of its segments, unless one is still open
STATES = ("complete", "pruned", "failed", "cancelled", RUNNING, WAITING, OPEN)


class BestResult(NamedTuple):
    """Best result of a study so far.

    Attributes:
        value: first objective.
        trial: number of the configuration.
        epochs: epochs trained.
        name: what tables call the configuration: its trial, in a confirmation that of the confirmed study.
    """

    value: float
    trial: int
    epochs: int
    name: str


@dataclass
class Snapshot:
    """A study at one moment.

    Attributes:
        config: its configuration.
        complete: whether there is nothing left to do.
        counts: number of trials by state; "open" ones are not suggested yet.
        last: states of the trials with the highest numbers, in order.
        rungs: (epochs, trials that finished the rung, trials expected to) for each rung.
        epochs: epochs trained so far.
        epochs_total: epochs to be trained in all, if no trial fails.
        env_steps: environment steps of training so far.
        eval_steps: environment steps of evaluations so far.
        best: best result in the first objective; None before the first, in a confirmation before its end.
        held: command that stops or pauses the study; None while it runs.
        when: reading of the monotonic clock.
    """

    config: Config
    complete: bool
    counts: dict[str, int]
    last: list[str]
    rungs: list[tuple[int, int, int]]
    epochs: int
    epochs_total: int
    env_steps: int
    eval_steps: int
    best: BestResult | None
    hold: Command | None = None
    when: float = field(default_factory=time.monotonic)


class Speed:
    """Environment steps and epochs per second, lately.

    Slow epochs end minutes apart. A window without any would tell neither the speed nor the time that is left.
    """

    def __init__(self) -> None:
        self.points: deque[tuple[float, int, int]] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot, and drop those before the window."""
        point, points = (snapshot.when, snapshot.env_steps, snapshot.epochs), self.points
        if len(points) > 1 and points[-2][1:] == points[-1][1:] == point[1:]:
            points.pop()  # nothing has changed since
        points.append(point)
        while len(points) > 2 and point[0] - points[1][0] > WINDOW and point[2] - points[1][2] >= FEWEST:
            points.popleft()

    def steps(self) -> float:
        """Return environment steps per second."""
        return self._rate(1)

    def epochs(self) -> float:
        """Return epochs per second."""
        return self._rate(2)

    def left(self, snapshot: Snapshot) -> float | None:
        """Return the estimated seconds to the end; None if nobody trains."""
        rate = self.epochs() if snapshot.counts.get(RUNNING) else 0.0
        return (snapshot.epochs_total - snapshot.epochs) / rate if rate else None

    def _rate(self, column: int) -> float:
        if len(self.points) < 2:
            return 0.0
        first, last = self.points[0], self.points[-1]
        return (last[column] - first[column]) / (last[0] - first[0]) if last[0] > first[0] else 0.0


def clock(seconds: float) -> str:
    """Format a duration as h:mm:ss or m:ss."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def look(store: Store, name: str) -> Snapshot:
    """Return a snapshot of the study."""
    return StudyProgress(store, name).look()


class StudyProgress:
    """Source of snapshots that reads only the changed rows."""

    def __init__(self, store: Store, name: str):
        self.store, self.rows = store, StudyRows(store, name)
        self._reset()

    def _reset(self) -> None:
        """Count all rows from scratch."""
        rungs = self.rows.config.rungs
        self._epochs: dict[int, int] = {}  # by trial: epochs trained
        self._env_steps: dict[int, int] = {}  # by trial: in these epochs
        self._finished: list[set[int]] = [set() for _ in rungs]  # by rung: trials that finished it
        self._results: list[dict[int, Segment]] = [{} for _ in rungs]  # by rung, then by configuration
        self._trained: set[int] = set()  # trials that a process trained at the last snapshot
        self._count(self.rows.trials.values(), self.rows.segments.values())

    def look(self) -> Snapshot:
        """Return a snapshot of the study."""
        config = self.rows.config
        changes = self.rows.refresh()
        if changes is not None and (changes.whole or self.rows.config is not config):
            self._reset()
        elif changes is not None:
            self._count(changes.trials, changes.segments)
        leased = self._in_training()
        self._measure(leased | self._trained)
        self._trained = leased
        config, complete = self.rows.config, self.rows.plan().complete
        trials = max(len(self.rows.trials), config.trials[-1] * seeds_of(config))
        counts = Counter(trial.state for trial in self.rows.trials.values())
        counts[WAITING], counts[OPEN] = counts[RUNNING] - len(leased), trials - len(self.rows.trials)
        counts[RUNNING] = len(leased)
        finished, epochs = self._rungs(), sum(self._epochs.values())
        return Snapshot(
            config,
            complete,
            {state: counts[state] for state in STATES if counts[state]},
            [self._state(number, leased) for number in range(max(0, trials - SHOWN), trials)],
            [
                (epochs, done, max(done, expected))  # asha may promote more than expected
                for epochs, done, expected in zip(config.rungs, finished, self._expected(complete), strict=True)
            ],
            epochs,
            max(epochs, self._epochs_total(complete)),
            sum(self._env_steps.values()),
            sum(row.eval_steps or 0 for row in self.rows.segments.values()),
            self._best(),
            self.rows.hold,
        )

    def _count(self, trials: Collection[Trial], segments: Collection[Segment]) -> None:
        """Count rows that are new or changed."""
        self._measure({row.number for row in (*trials, *segments)})
        for row in segments:
            if row.state != "ready":
                self._finished[row.rung].add(row.number)
        config, seeds, segments_by_key = self.rows.config, seeds_of(self.rows.config), self.rows.segments
        keys = {(row.configuration * seeds + n, row.rung) for row in segments for n in range(seeds)}
        if is_across(config) and segments:  # each result may change the scale
            keys = set(segments_by_key)
        rows = [segments_by_key[key] for key in keys & segments_by_key.keys()]
        for row in collapse(config, [], remembered([self.rows.trials[row.number] for row in rows], rows)[1])[1]:
            self._results[row.rung].pop(row.number, None)  # a race may go on with more seeds
            if row.state == "done":
                self._results[row.rung][row.number] = row

    def _best(self) -> BestResult | None:
        """Return the best result, as in the tables."""
        config, row = self.rows.config, self._best_row()
        if row is None:
            return None
        name = origins(config)[row.number].name if config.scheduling.confirms else f"trial {row.number}"
        return BestResult(measured(config, row), row.number, row.epochs, name)

    def _best_row(self) -> Segment | None:
        """Return the row of the best result.

        That is the best score among the trials that trained longest, with most seeds where they race, and violate the
        constraints least, or the best mean over the seeds of repeated ones; of equal ones, that with the better score
        there, or else on the rung before.
        """
        if self.rows.config.scheduling.confirms:  # its race chooses, and the winner's result is its estimate
            winner = winner_of(self.rows.config, self.rows.segments.values())
            return None if winner is None else self._results[0].get(winner)
        longest = next((results for results in reversed(self._results) if results), {})
        config = self.rows.config
        ranks: dict[int, tuple[float, ...]]
        if config.repeating:  # one objective, and no constraints
            scores = {number: score_of(row) for number, row in longest.items()}
            origins = {number: origin(self.rows.trials[number]) for number in scores}
            mean, failed = means(origins, scores), unreliable(self.rows.trials.values())
            ranks = {number: (origins[number] not in failed, mean[number], score) for number, score in scores.items()}
        else:
            ranks = {number: (len(self.rows.done_seeds(row)), *worths(config, row)) for number, row in longest.items()}
        highest = max(ranks.values(), default=None)
        equals = [row for number, row in longest.items() if ranks[number] == highest]
        return min(equals, key=lambda row: (self._earlier(row), row.number), default=None)

    def _earlier(self, row: Segment) -> list[float]:
        """Return a sort key of earlier rungs, from last to first."""
        results = (self._results[rung].get(row.number) for rung in range(row.rung - 1, -1, -1))
        return [-part for row in results if row is not None for part in worth(self.rows.config, row)]

    def _in_training(self) -> set[int]:
        """Return the trials in training."""
        uids = self.store.holders()
        trials = (self.rows.trials[number] for number, _ in self.rows.ready)
        return {trial.number for trial in trials if trial.state == RUNNING and trial.uid in uids}

    def _measure(self, numbers: Collection[int]) -> None:
        """Update the number of epochs that these trials have trained."""
        trials = [self.rows.trials[number] for number in numbers]
        ready = {number for number, _ in self.rows.ready}
        whole = {trial.number for trial in trials if trial.state in WHOLE and trial.number not in ready}
        reached = self.store.reached([trial.uid for trial in trials if trial.number not in whole])
        rungs = list(enumerate(self.rows.config.rungs))
        for trial in trials:
            target = max((epochs for rung, epochs in rungs if (trial.number, rung) in self.rows.segments), default=0)
            epochs = target if trial.number in whole else min(reached.get(trial.uid, 0), target)
            self._epochs[trial.number] = trained = max(0, epochs - trial.inherited)
            self._env_steps[trial.number] = trained * trial.epoch_steps

    def _state(self, number: int, leased: Collection[int]) -> str:
        state = self.rows.trials[number].state if number in self.rows.trials else OPEN
        return WAITING if state == RUNNING and number not in leased else state

    def _expected(self, complete: bool) -> list[int]:
        """Return the final or expected number of trials on each rung."""
        return self._rungs() if complete else self.rows.scheduler.entrants()

    def _rungs(self) -> list[int]:
        """Return the number of trials that finished each rung."""
        return [len(numbers) for numbers in self._finished]

    def _epochs_total(self, complete: bool) -> int:
        rungs = self.rows.config.rungs
        added = [high - low for low, high in zip((0, *rungs), rungs, strict=False)]
        return sum(n * more for n, more in zip(self._expected(complete), added, strict=True))
