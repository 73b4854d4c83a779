"""Cures of fsck's findings.

Each cure examines the rows again, in the transaction that changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import StoreError
from ..storage import studies as study_rows
from ..storage.checkpoints import go_back
from ..storage.retention import drop
from ..storage.sql.events import add_events
from ..storage.sql.schema import Now, blob, checkpoint, checkpoint_blob, event, metadata, metric, segment, task, trial
from ..storage.store import Store
from .findings import Finding, Repair
from .locking import last_epochs, lock_if_free

HELD = "a living process holds the task; it is repaired when that has ended"
GONE = "it is no longer so"
Cure = Callable[..., str]  # of a connection and the finding: "" once it is done, or why it was not


def repair(store: Store, findings: Iterable[Finding]) -> list[Repair]:
    """Apply the cures one by one, each in its own transaction."""
    order = list(_CURES)
    repairable = sorted((each for each in findings if each.repairable), key=lambda each: order.index(each.kind))
    repairs = []
    for finding in repairable:
        try:
            note = store.database.write(partial(_CURES[finding.kind], finding=finding))
        except StoreError as error:
            note = f"{error}"
        repairs.append(Repair(finding, note in ("", GONE), note))
    return repairs


def _lease(connection: Connection, finding: Finding) -> str:
    uid, token = finding.key
    held = (task.c.uid == uid) & (task.c.lease_epoch == token) & task.c.lease_owner.is_not(None)
    if connection.scalar(sa.select(task.c.uid).where(held)) is None:
        return GONE
    return "" if lock_if_free(connection, uid) else HELD


def _unreachable(connection: Connection, finding: Finding) -> str:
    name, *key = finding.key
    table = metadata.tables[name]
    if table is checkpoint:
        connection.execute(checkpoint_blob.delete().where(checkpoint_blob.c.checkpoint == key[0]))
    if table is trial:
        connection.execute(segment.delete().where(segment.c.study == key[0], segment.c.number == key[1]))
    same = sa.and_(*(column == value for column, value in zip(table.primary_key.columns, key, strict=True)))
    return "" if connection.execute(table.delete().where(same)).rowcount else GONE


def _blob(connection: Connection, finding: Finding) -> str:
    connection.execute(blob.update().where(blob.c.digest == finding.key[0]).values(size=-1))
    return ""


def _size(connection: Connection, finding: Finding) -> str:
    length = sa.func.length(blob.c.data)
    connection.execute(blob.update().where(blob.c.digest == finding.key[0]).values(size=length))
    return ""


def _checkpoint(connection: Connection, finding: Finding) -> str:
    uid, id = finding.key
    if not lock_if_free(connection, uid):
        return HELD
    query = sa.select(checkpoint.c.id, checkpoint.c.epochs).where(checkpoint.c.uid == uid).order_by(checkpoint.c.id)
    epochs = {row.id: row.epochs for row in connection.execute(query)}
    if id not in epochs:
        return GONE
    drop(connection, [id])
    if id != max(epochs):  # training has gone on from there; a later one, if damaged as well, has its own finding
        return ""
    sound = epochs.get(max(epochs.keys() - {id}, default=0), 0)
    go_back(connection, uid, sound, [])
    add_events(connection, [(uid, "repaired", {"epochs": sound, "damage": [finding.what]})])
    return ""


def _epochs(connection: Connection, finding: Finding) -> str:
    if not lock_if_free(connection, finding.key[0]):
        return HELD
    last_epochs(connection, finding.key[0])
    return ""


def _identity(connection: Connection, finding: Finding) -> str:
    uid = finding.key[0]
    if not lock_if_free(connection, uid):
        return HELD
    connection.execute(metric.delete().where(metric.c.uid == uid))
    connection.execute(event.delete().where(event.c.uid == uid))
    empty = (task.c.uid == uid) & task.c.identity.is_(None) & ~sa.exists().where(checkpoint.c.uid == uid)
    return "" if connection.execute(task.delete().where(empty)).rowcount else GONE


def _metrics(connection: Connection, finding: Finding) -> str:
    uid = finding.key[0]
    if not lock_if_free(connection, uid):
        return HELD
    connection.execute(metric.delete().where(metric.c.uid == uid, metric.c.epoch > last_epochs(connection, uid)))
    return ""


def _segment(key: tuple[Any, ...]) -> Any:
    return sa.and_(segment.c.study == key[0], segment.c.number == key[1], segment.c.rung == key[2])


def _reopen(connection: Connection, finding: Finding) -> str:
    study_rows.revise(connection, finding.key[0], rewrite=True)
    values = {"state": "ready", "score": None, "digest": None, "objectives": None}
    connection.execute(segment.update().where(_segment(finding.key)).values(**values))
    name, number, _ = finding.key
    ended = (trial.c.study == name) & (trial.c.number == number) & trial.c.state.in_(["complete", "pruned"])
    connection.execute(trial.update().where(ended).values(state="running", finished=None))
    return ""


def _close(connection: Connection, finding: Finding) -> str:
    study_rows.revise(connection, finding.key[0], rewrite=True)
    gone = connection.execute(segment.delete().where(_segment(finding.key), segment.c.state == "ready"))
    return "" if gone.rowcount else GONE


def _fail(connection: Connection, finding: Finding) -> str:
    name, number = finding.key
    study_rows.revise(connection, name, rewrite=True)
    running = (trial.c.study == name) & (trial.c.number == number) & (trial.c.state == "running")
    values = {"state": "failed", "error": "its segment failed; the reason is not on record", "finished": Now()}
    return "" if connection.execute(trial.update().where(running).values(**values)).rowcount else GONE


def _orphan(connection: Connection, finding: Finding) -> str:
    named = sa.exists().where(checkpoint_blob.c.digest == blob.c.digest)
    gone = connection.execute(blob.delete().where(blob.c.digest == finding.key[0], ~named))
    return "" if gone.rowcount else GONE


# In the order of repair: leases first, so that the tasks of dead processes are free; what hangs on others after those;
# orphans at the end.
_CURES: dict[str, Cure] = {
    "lease": _lease,
    "unreachable": _unreachable,
    "blob": _blob,
    "blob-size": _size,
    "checkpoint": _checkpoint,
    "task-epochs": _epochs,
    "task-identity": _identity,
    "metrics": _metrics,
    "segment-result": _reopen,
    "segment-open": _close,
    "trial-failed": _fail,
    "orphan": _orphan,
}
