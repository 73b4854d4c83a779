"""A study as one process knows it: its rows, of which only those are read that have changed, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..schedulers.registry import scheduler
from ..storage.rows import Changes, Segment, Trial
from ..study.config import Config
from ..study.plan import Plan, Scheduler

if TYPE_CHECKING:
    from ..storage.store import Store


class View:
    """The rows of a study in memory; everything is read once, later only what has changed since.

    What a look costs depends on what has changed, not on how much there is.

    Attributes:
        config: the study's, as of the last look; a study may be extended while it runs.
        trials, segments: by number, and by (number, rung).
        ready: the keys of the segments that are ready, or in training.
        revision: of the study, at the last look.
    """

    def __init__(self, store: Store, name: str):
        """Looks for the first time. UnknownStudy names the studies that there are."""
        self.store, self.name, self.revision = store, name, -1
        self.config: Config
        self.scheduler: Scheduler
        self.trials: dict[int, Trial] = {}
        self.segments: dict[tuple[int, int], Segment] = {}
        self.ready: set[tuple[int, int]] = set()
        self._plan: Plan | None = None
        self.refresh()

    def refresh(self) -> Changes | None:
        """Reads what has changed, and gives it."""
        changes = self.store.changes(self.name, self.revision)
        if changes is None:
            return None
        config = Config.from_json(changes.config, self.name)
        self._take(changes)
        if changes.whole or config != self.config:
            self.config = config
            self.scheduler = scheduler(config)
            self.scheduler.observe(self.trials.values(), self.segments.values())
        else:
            self.scheduler.observe(changes.trials, changes.segments)
        self.revision, self._plan = changes.revision, None
        return changes

    def _take(self, changes: Changes) -> None:
        if changes.whole:
            self.trials, self.segments, self.ready = {}, {}, set()
        self.trials |= {trial.number: trial for trial in changes.trials}
        for row in changes.segments:
            key = (row.number, row.rung)
            self.segments[key] = row
            (self.ready.add if row.state == "ready" else self.ready.discard)(key)

    def plan(self) -> Plan:
        """What follows from the rows as of the last look."""
        if self._plan is None:
            self._plan = self.scheduler.plan()
        return self._plan
