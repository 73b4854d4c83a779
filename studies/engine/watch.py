"""How far a study is, looked at again and again: what is counted follows its rows as they change."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..schedulers.seeds import collapse, seeds_of
from ..storage.rows import Segment, Trial
from ..study.config import Config
from ..study.objectives import measured
from .view import View

if TYPE_CHECKING:
    from ..storage.store import Store

LAST = 40  # trials whose states are shown one by one
WAITING, TRAINING, OPEN = "waiting", "training", "open"
STATES = ("complete", "pruned", "failed", TRAINING, WAITING, OPEN)


@dataclass
class Snapshot:
    """A study at one moment.

    Attributes:
        counts: of trials, by state; "open" ones are not suggested yet.
        last: the states of the trials with the highest numbers, in order.
        rungs: for each rung (epochs, how many trials are through, how many are to come).
        epochs, epochs_total: done, and to be done in all if no trial fails.
        env_steps: done.
        best: (value, trial, epochs), the best so far in the first objective, the return for example, or None.
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
    when: float = field(default_factory=time.monotonic)


def look(store: Store, name: str) -> Snapshot:
    """The study at this moment."""
    return Watch(store, name).look()


class Watch:
    """Looks at a study again and again; each look costs what has changed and what is trained, not what there is."""

    def __init__(self, store: Store, name: str):
        self.store, self.view = store, View(store, name)
        self._begin()

    def _begin(self) -> None:
        """Counts everything anew."""
        self._entrants = self.view.scheduler.entrants()
        self._states: dict[int, str] = {}  # of trials, as their rows say
        self._counts: Counter[str] = Counter()  # of these
        self._epochs: dict[int, int] = {}  # that a trial was trained for
        self._through: set[tuple[int, int]] = set()  # the segments that are finished
        self._rungs = [0] * len(self.view.config.rungs)  # how many these are on each rung
        self._done, self._env_steps = 0, 0  # epochs, steps
        self._trained: set[int] = set()  # by somebody, at the last look
        self._best: Segment | None = None
        self._count(self.view.trials.values(), self.view.segments.values())

    def look(self) -> Snapshot:
        """The study at this moment."""
        config = self.view.config
        changes = self.view.refresh()
        if changes is not None and (changes.whole or self.view.config is not config):
            self._begin()
        elif changes is not None:
            self._count(changes.trials, changes.segments)
        held = self._held()
        config, complete = self.view.config, self.view.plan().complete
        trials = max(len(self.view.trials), config.trials[-1] * seeds_of(config))
        counts = self._counts.copy()
        counts += Counter(
            {TRAINING: len(held), WAITING: counts["running"] - len(held), OPEN: trials - len(self.view.trials)}
        )
        del counts["running"]
        best = self._best
        return Snapshot(
            config,
            complete,
            {state: counts[state] for state in STATES if counts[state]},
            [self._state(number, held) for number in range(max(0, trials - LAST), trials)],
            [
                (epochs, through, max(through, total))  # asha promotes more than are expected
                for epochs, through, total in zip(config.rungs, self._rungs, self._entrants, strict=True)
            ],
            self._done,
            max(self._done, self._epochs_total()),
            self._env_steps,
            (measured(config, best), best.number, best.epochs) if best else None,
        )

    def _count(self, trials: Iterable[Trial], segments: Iterable[Segment]) -> None:
        """Takes rows into account that are new or have changed."""
        changed = set()
        for trial in trials:
            if (before := self._states.get(trial.number)) is not None:
                self._counts[before] -= 1
            self._states[trial.number] = trial.state
            self._counts[trial.state] += 1
            changed.add(trial.number)
        scored = []
        for row in segments:
            key = (row.number, row.rung)
            changed.add(row.number)
            if row.state != "ready" and key not in self._through:
                self._through.add(key)
                self._rungs[row.rung] += 1
                scored.append(row)
        self._measure(changed)
        candidates = [row for row in self._configurations(scored) if row.state == "done"]
        candidates += [self._best] if self._best else []
        self._best = max(candidates, key=lambda row: (row.score, row.epochs, -row.number), default=None)

    def _configurations(self, rows: Sequence[Segment]) -> Sequence[Segment]:
        """The segments of the configurations whose replicates these rows are of."""
        seeds = seeds_of(self.view.config)
        if seeds == 1:
            return rows
        keys = {(row.number // seeds * seeds + replicate, row.rung) for row in rows for replicate in range(seeds)}
        return collapse(self.view.config, [], [self.view.segments[k] for k in keys if k in self.view.segments])[1]

    def _held(self) -> set[int]:
        """The trials that somebody trains now; reads how far they are, and how far those are that were let go since."""
        uids = self.store.held()
        running = (number for number, _ in self.view.ready if self._states[number] == "running")
        held = {number for number in running if self.view.trials[number].uid in uids}
        self._measure(held | self._trained)
        self._trained = held
        return held

    def _measure(self, numbers: Collection[int]) -> None:
        """Reads how far trials are trained."""
        trials = [self.view.trials[number] for number in numbers]
        reached = self.store.reached([trial.uid for trial in trials])
        for trial in trials:
            target = max((row.epochs for row in self._segments_of(trial.number)), default=0)
            done = max(0, min(reached.get(trial.uid, 0), target) - _start(trial))
            more = done - self._epochs.get(trial.number, 0)
            self._epochs[trial.number] = done
            self._done += more
            self._env_steps += more * int(trial.params.get("epoch_steps", 0))

    def _segments_of(self, number: int) -> Iterator[Segment]:
        rungs = range(len(self.view.config.rungs))
        return (self.view.segments[number, rung] for rung in rungs if (number, rung) in self.view.segments)

    def _state(self, number: int, held: Collection[int]) -> str:
        state = self._states.get(number, OPEN)
        return (TRAINING if number in held else WAITING) if state == "running" else state

    def _epochs_total(self) -> int:
        rungs = self.view.config.rungs
        added = [high - low for low, high in zip((0, *rungs), rungs, strict=False)]
        return sum(n * more for n, more in zip(self._entrants, added, strict=True))


def _start(trial: Trial) -> int:
    """How many epochs a branch did not have to train."""
    return int(trial.attrs["start"]["epochs"]) if "start" in trial.attrs else 0
