"""Rows of a study in memory, updated by reading only changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schedulers.registry import remembered, scheduler
from ..schedulers.seeds import seeds_of
from ..storage.commands import Command, hold_of
from ..storage.rows import Changes, Segment, Trial
from ..study.config import Config
from ..study.plan import Plan, Scheduler

if TYPE_CHECKING:
    from ..storage.store import Store


class StudyRows:
    """Trials and segments of a study, and the plan for them.

    The first read takes all rows, later reads only those that changed.

    Attributes:
        config: configuration; it changes if the study is extended.
        scheduler: scheduler of this configuration, which has observed all rows.
        trials: trials by number.
        segments: segments by (number, rung).
        ready: keys of the segments that are ready or in training.
        commands: commands given to the study.
        revision: revision of the study at the last read.
        created: when the study was created.
    """

    def __init__(self, store: Store, name: str):
        """Read the study.

        Raises:
            UnknownStudy: the storage has no study of this name.
        """
        self.store, self.name, self.revision = store, name, -1
        self.created: float | None = None
        self.config: Config
        self.scheduler: Scheduler
        self.trials: dict[int, Trial] = {}
        self.segments: dict[tuple[int, int], Segment] = {}
        self.ready: set[tuple[int, int]] = set()
        self.commands: list[Command] = []
        self._plan: Plan | None = None
        self.refresh()

    def refresh(self) -> Changes | None:
        """Read the rows that changed, and return them; None if none did.

        Raises:
            UnknownStudy: the study was deleted.
            StudyReplaced: it was, and another one was created with its name.
        """
        update = self.store.changes_with_commands(self.name, self.revision, self.created)
        if update is None:
            return None
        changes, self.commands = update
        self.created = changes.created
        config = Config.from_json(changes.config, self.name)
        if changes.whole:
            self.trials, self.segments, self.ready = {}, {}, set()
        self.trials |= {trial.number: trial for trial in changes.trials}
        for row in changes.segments:
            key = (row.number, row.rung)
            self.segments[key] = row
            (self.ready.add if row.state == "ready" else self.ready.discard)(key)
        if changes.whole or config != self.config:
            self.config = config
            self.scheduler = scheduler(config)
            self.scheduler.observe(*remembered(self.trials.values(), self.segments.values()))
        else:
            theirs = [self.trials[row.number] for row in changes.segments]  # they say whether rows count
            self.scheduler.observe(changes.trials, remembered(theirs, changes.segments)[1])
        self.revision, self._plan = changes.revision, None
        return changes

    @property
    def hold(self) -> Command | None:
        """Command that stops or pauses the study; None while it runs."""
        return hold_of(self.commands)

    def done_seeds(self, row: Segment) -> list[Segment]:
        """Return a result's finished segments, one for each seed."""
        seeds = seeds_of(self.config)
        rows = (self.segments.get((row.number * seeds + n, row.rung)) for n in range(seeds))
        return [row for row in rows if row is not None and row.state == "done"]

    def plan(self) -> Plan:
        """Return the plan that follows from the rows as last read."""
        if self._plan is None:
            self._plan = self.scheduler.plan()
        return self._plan
