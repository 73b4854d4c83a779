"""Curves of a study's trials or of one task, read from rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..engine.study_rows import StudyRows
from ..errors import UnknownStudy
from ..storage.rows import Trial
from ..study.config import title
from ..study.environments import environment_of

if TYPE_CHECKING:
    from ..storage.store import Store


@dataclass(frozen=True)
class Run:
    """The owner of one curve: a trial, or a single task.

    Attributes:
        group: name of the study; "tasks" for a single task.
        name: name of the run, unique within its group.
        uid: uid of the task.
        title: algorithm and environment.
        number: number of the configuration in its study; None for a single task.
        seed: seed of the training.
        hyperparameters: values by dotted name.
        lineage: parent and start of a branch; else None.
        state: state of the trial: running, complete, pruned or failed.
        started: time at which its training began.
        finished: time at which it ended; None before.
        last: last epoch whose metrics are final; None if all are. A rung's last epoch gets its objectives when the
            segment ends, and another study may train the same task further.
    """

    group: str
    name: str
    uid: str
    title: str
    number: int | None
    seed: int
    hyperparameters: Mapping[str, Any]
    lineage: Mapping[str, Any] | None
    state: str
    started: float
    finished: float | None
    last: int | None


@dataclass(frozen=True)
class Point:
    """One epoch of a curve.

    Rows do not hold the time of an epoch, so the points that are read together are spread evenly over `time`.
    """

    epoch: int
    time: float
    metrics: Mapping[str, float]


class Curves:
    """Reader of the curves of a study or a task.

    Args:
        store: store that holds it.
        name: name of a study, or the uid of a task or a unique prefix of it.

    Raises:
        ValueError: no study or task matches.
    """

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, name
        self.rows: StudyRows | None = None
        try:
            self.rows = StudyRows(store, name)
        except UnknownStudy:
            try:
                self.uid = store.uid(name)
            except ValueError as error:
                raise ValueError(f"there is no study {name!r}, and {error}") from None
        self._open = set(self.rows.trials) if self.rows else set()  # trials that may get more epochs
        self._read: dict[str, float] = {}  # time of the last point, by run

    def again(self) -> Curves:
        """Return another reader, which starts from the beginning."""
        return Curves(self.store, self.name)

    @property
    def complete(self) -> bool:
        """True if no more points can follow."""
        return self.rows is not None and self.rows.plan().complete

    def refresh(self) -> list[Run]:
        """Return the runs that may have grown since the last call."""
        if self.rows is None:
            return [self._task()]
        changes = self.rows.refresh()
        if changes is not None:
            self._open |= {row.number for row in changes.trials} | {row.number for row in changes.segments}
        trials = [self.rows.trials[number] for number in sorted(self._open & self.rows.trials.keys())]
        self._open = {trial.number for trial in trials if trial.state == "running"}
        started = self.store.started([trial.uid for trial in trials])
        return [self._trial(self.rows, trial, started.get(trial.uid)) for trial in trials]

    def after(self, runs: Sequence[Run], epochs: Sequence[int]) -> Iterator[tuple[Run, list[Point]]]:
        """Yield each run with its points after its epoch, in order."""
        last: dict[str, int] = {}
        for run, epoch in zip(runs, epochs, strict=True):
            last[run.uid] = min(epoch, last.get(run.uid, epoch))
        stored = self.store.metrics_after(last)
        for run, epoch in zip(runs, epochs, strict=True):
            rows = [
                row for row in stored.get(run.uid, ()) if epoch < row[0] and (run.last is None or row[0] <= run.last)
            ]
            begin, end = self._read.get(run.name, run.started), run.finished or time.time()
            self._read[run.name] = end
            step = (end - begin) / max(1, len(rows))
            yield run, [Point(n, begin + step * index, metrics) for index, (n, metrics) in enumerate(rows, 1)]

    def _trial(self, rows: StudyRows, trial: Trial, started: float | None) -> Run:
        config = rows.config
        segments = [rows.segments.get((trial.number, rung)) for rung in range(len(config.rungs))]
        several, env = len(config.environments), environment_of(config, trial.replicate)
        name = f"trial-{trial.configuration:04}" + (f"-env-{trial.replicate % several}" if several > 1 else "")
        name += f"-seed-{trial.replicate // several}" if trial.seeds > several else ""
        return Run(
            group=self.name,
            name=name,
            uid=trial.uid,
            title=title(config.task, env),
            number=trial.configuration,
            seed=config.seed if trial.seed is None else trial.seed,
            hyperparameters=trial.params,
            lineage={"parent": trial.parent, **asdict(trial.start)} if trial.start else None,
            state=trial.state,
            started=started or trial.created or 0.0,
            finished=trial.finished,
            last=max((row.epochs - (row.state == "ready") for row in segments if row is not None), default=0),
        )

    def _task(self) -> Run:
        [row] = self.store.tasks([self.uid])
        identity = row.identity or {}
        return Run(
            group="tasks",
            name=self.uid,
            uid=self.uid,
            title=title(str(identity.get("task")), identity.get("env") or {}),
            number=None,
            seed=int(identity.get("seed", 0)),
            hyperparameters=identity.get("hyperparameters", {}),
            lineage=None,
            state="running",
            started=self.store.started([self.uid]).get(self.uid) or row.created,
            finished=None,
            last=None,
        )
