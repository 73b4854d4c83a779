"""Progress of a study, counted incrementally from the rows that changed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..schedulers.registry import remembered
from ..schedulers.seeds import collapse, seeds_of
from ..storage.commands import EXCLUDED, Command
from ..storage.rows import Segment, Trial, score_of
from ..study.config import Config
from ..study.environments import is_across
from ..study.objectives import measured
from .json_views import RUNNING, WAITING
from .study_rows import StudyRows

if TYPE_CHECKING:
    from ..storage.store import Store

WINDOW = 8.0  # seconds over which speed is measured
SHOWN = 40  # trials whose states are listed
OPEN = "open"  # state of a trial that is not suggested yet
WHOLE = ("complete", "pruned")  # a trial in these states has trained all of its segments, unless one is still open
STATES = ("complete", "pruned", "failed", "cancelled", RUNNING, WAITING, OPEN)


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
        env_steps: environment steps so far.
        best: (value, trial, epochs) of the best result in the first objective, or None.
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
    best: tuple[float, int, int] | None
    held: Command | None = None
    when: float = field(default_factory=time.monotonic)


class Speed:
    """Environment steps and epochs per second over the last WINDOW seconds."""

    def __init__(self) -> None:
        self.points: deque[tuple[float, int, int]] = deque()

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot, and drop those older than the window."""
        self.points.append((snapshot.when, snapshot.env_steps, snapshot.epochs))
        while len(self.points) > 2 and snapshot.when - self.points[1][0] > WINDOW:
            self.points.popleft()

    def steps(self) -> float:
        """Return environment steps per second."""
        return self._rate(1)

    def epochs(self) -> float:
        """Return epochs per second."""
        return self._rate(2)

    def left(self, snapshot: Snapshot) -> float | None:
        """Return the estimated seconds to the end; None while unknown."""
        rate = self.epochs()
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
        self._epochs: dict[int, int] = {}  # by trial: epochs trained
        self._finished: set[tuple[int, int]] = set()  # segments
        self._rungs = [0] * len(self.rows.config.rungs)  # finished segments on each rung
        self._done, self._env_steps = 0, 0  # epochs and steps trained
        self._trained: set[int] = set()  # trials that a process trained at the last snapshot
        self._best: Segment | None = None
        self._scores: dict[tuple[int, int], float] = {}  # by configuration and rung
        self._count(self.rows.trials.values(), self.rows.segments.values())

    def look(self) -> Snapshot:
        """Return a snapshot of the study."""
        config = self.rows.config
        changes = self.rows.refresh()
        if changes is not None and (changes.whole or self.rows.config is not config):
            self._reset()
        elif changes is not None:
            self._count(changes.trials, changes.segments)
        held = self._held()
        config, complete = self.rows.config, self.rows.plan().complete
        trials = max(len(self.rows.trials), config.trials[-1] * seeds_of(config))
        counts = Counter(trial.state for trial in self.rows.trials.values())
        counts[WAITING], counts[OPEN] = counts[RUNNING] - len(held), trials - len(self.rows.trials)
        counts[RUNNING] = len(held)
        best = self._best
        return Snapshot(
            config,
            complete,
            {state: counts[state] for state in STATES if counts[state]},
            [self._state(number, held) for number in range(max(0, trials - SHOWN), trials)],
            [
                (epochs, done, max(done, expected))  # asha may promote more than expected
                for epochs, done, expected in zip(config.rungs, self._rungs, self._expected(complete), strict=True)
            ],
            self._done,
            max(self._done, self._epochs_total(complete)),
            self._env_steps,
            (measured(config, best), best.number, best.epochs) if best else None,
            self.rows.hold,
        )

    def _count(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Update the counts for rows that are new or changed."""
        trials, scored = list(trials), []
        changed = {trial.number for trial in trials}
        for row in segments:
            key = (row.number, row.rung)
            changed.add(row.number)
            if row.state != "ready" and key not in self._finished:
                self._finished.add(key)
                self._rungs[row.rung] += 1
                scored.append(row)
        self._measure(changed)
        config, seeds = self.rows.config, seeds_of(self.rows.config)
        replicates = {(row.configuration * seeds + n, row.rung) for row in scored for n in range(seeds)}
        forgotten = any(EXCLUDED in trial.attrs for trial in trials)
        if forgotten or (is_across(config) and scored):  # each result may change the scale
            replicates, self._best = set(self.rows.segments), None
        rows = [self.rows.segments[key] for key in replicates & self.rows.segments.keys()]
        scored = collapse(config, [], remembered([self.rows.trials[row.number] for row in rows], rows)[1])[1]
        done = [row for row in scored if row.state == "done"]
        self._scores |= {(row.number, row.rung): score_of(row) for row in done}
        candidates = done + ([self._best] if self._best else [])
        # As in the tables: the best score among the trials that trained longest; equal ones by the rung before.
        place = max(((row.epochs, row.score) for row in candidates), default=None)
        equals = [row for row in candidates if (row.epochs, row.score) == place]
        self._best = min(equals, key=lambda row: (self._earlier(row), row.number), default=None)

    def _earlier(self, row: Segment) -> list[float]:
        """Return a configuration's negated scores on earlier rungs, from last to first."""
        keys = ((row.number, rung) for rung in range(row.rung - 1, -1, -1))
        return [-self._scores[key] for key in keys if key in self._scores]

    def _held(self) -> set[int]:
        """Return the trials in training, after updating their epochs."""
        uids = self.store.holders()
        trials = (self.rows.trials[number] for number, _ in self.rows.ready)
        held = {trial.number for trial in trials if trial.state == RUNNING and trial.uid in uids}
        self._measure(held | self._trained)
        self._trained = held
        return held

    def _measure(self, numbers: Collection[int]) -> None:
        """Update the number of epochs that these trials have trained."""
        trials = [self.rows.trials[number] for number in numbers]
        open_ = {number for number, _ in self.rows.ready}
        whole = {trial.number for trial in trials if trial.state in WHOLE and trial.number not in open_}
        reached = self.store.reached([trial.uid for trial in trials if trial.number not in whole])
        rungs, segments = self.rows.config.rungs, self.rows.segments
        for trial in trials:
            target = max((epochs for rung, epochs in enumerate(rungs) if (trial.number, rung) in segments), default=0)
            inherited = int(trial.attrs["start"]["epochs"]) if "start" in trial.attrs else 0  # by a branch
            done = max(0, (target if trial.number in whole else min(reached.get(trial.uid, 0), target)) - inherited)
            more = done - self._epochs.get(trial.number, 0)
            self._epochs[trial.number] = done
            self._done += more
            self._env_steps += more * int(trial.params.get("epoch_steps", 0))

    def _state(self, number: int, held: Collection[int]) -> str:
        state = self.rows.trials[number].state if number in self.rows.trials else OPEN
        return WAITING if state == RUNNING and number not in held else state

    def _expected(self, complete: bool) -> list[int]:
        """Return the final or expected number of trials on each rung."""
        return self._rungs if complete else self.rows.scheduler.entrants()

    def _epochs_total(self, complete: bool) -> int:
        rungs = self.rows.config.rungs
        added = [high - low for low, high in zip((0, *rungs), rungs, strict=False)]
        return sum(n * more for n, more in zip(self._expected(complete), added, strict=True))
