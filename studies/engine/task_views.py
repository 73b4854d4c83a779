"""Views of tasks, read from rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...tasks.catalog import is_resume_label
from ...tasks.errors import ADVICE, INEXACT
from ..storage.branches import BRANCH, Start
from ..storage.retention import reasons
from ..storage.rows import Event
from ..study.config import Config
from ..study.objectives import RETURN
from .trial_views import state_of
from .views import AncestorView, CheckpointView, TaskView, TrainingsView, TrainingView, TrialOfTaskView

if TYPE_CHECKING:
    from ..storage.store import Store


def task_view(store: Store, uid: str) -> TaskView:
    """Return everything stored about one task."""
    [row] = store.tasks([uid])
    checkpoints = store.checkpoints(uid)
    measures, events = dict(store.metrics(uid)), store.events(uid)
    metrics = [{"epoch": epoch, **values} for epoch, values in measures.items()]
    measured = {row["epoch"]: row[RETURN] for row in metrics if RETURN in row}
    identity, of = row.identity or {}, store.trials_of(uid)
    exactness = Config.from_json(store.study(of[0][0]).config, of[0][0]).exactness if of else None
    return TaskView(
        uid=uid,
        task=identity.get("task"),
        env=identity.get("env"),
        seed=identity.get("seed"),
        epochs=row.epochs,
        return_=measured.get(row.epochs),
        digest=checkpoints[-1].digest if checkpoints else None,
        owner=row.owner,
        hyperparameters=identity.get("hyperparameters", {}),
        lineage=_lineage(store, uid, row.epochs),
        trials=[
            TrialOfTaskView(
                study=study,
                number=trial.configuration,
                state=state_of(trial, store.in_training(study)),
                error=trial.error,
            )
            for study, trial in of
        ],
        inexact=[text for text in texts_in(events, INEXACT) if exactness is None or not is_resume_label(text)],
        exactness=exactness,
        advice=texts_in(events, ADVICE),
        metrics=metrics,
        checkpoints=[
            CheckpointView(
                epochs=checkpoint.epochs,
                within_epoch=checkpoint.within_epoch,
                digest=checkpoint.digest,
                bytes=sum(checkpoint.blobs.values()),
                created=checkpoint.created,
                kept=why,
            )
            for checkpoint, why in zip(checkpoints, reasons(checkpoints, measures, events), strict=True)
        ],
        events=[{"time": event.created, "kind": event.kind, **event.data} for event in events],
    )


def texts_in(events: Sequence[Event], category: str) -> list[str]:
    """Return the texts in a task's events of this kind, see `TaskRecord.label`."""
    return list(dict.fromkeys(text for event in events if event.kind == category for text in event.data[category]))


def _lineage(store: Store, uid: str, epochs: int) -> list[AncestorView]:
    """Return the lineage from the root, with each task's last epoch."""
    rows: dict[str, int] = {}
    while uid not in rows:
        rows[uid] = epochs
        for event in store.events(uid):
            if event.kind == BRANCH:
                start = Start.of(event.data)
                uid, epochs = start.uid, start.epochs
                break
    return [AncestorView(uid=uid, until=epochs) for uid, epochs in reversed(rows.items())]


def trainings_view(store: Store) -> TrainingsView:
    """Return the tasks that no study trains."""
    trainings = []
    for row in store.tasks():
        if row.identity is None or "task" not in row.identity or store.trials_of(row.uid):
            continue
        returns = [values[RETURN] for _, values in store.metrics(row.uid) if RETURN in values]
        identity = {name: row.identity[name] for name in ("task", "env", "seed")}
        last = returns[-1] if returns else None
        trainings.append(TrainingView(uid=row.uid, **identity, epochs=row.epochs, return_=last))
    return TrainingsView(storage=store.url, tasks=trainings)
