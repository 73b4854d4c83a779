"""Cures for fsck's findings.

Each cure checks the rows again in the transaction that changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import StoreError
from ..storage import studies as study_rows
from ..storage.checkpoints import go_back
from ..storage.retention import drop
from ..storage.sql.schema import Now, blob, checkpoint, checkpoint_blob, event, metadata, metric, segment, task, trial
from ..storage.sql.writes import add_events
from ..storage.store import Store
from .findings import Fault, Repair
from .locking import last_epochs, lock_if_free

HELD = "a living process holds the task; repair it when that process has ended"
GONE = "it no longer holds"


def repair(store: Store, findings: Iterable[Fault]) -> list[Repair]:
    """Apply the cures in a safe order, each in its own transaction."""
    order = list(_CURES)
    repairable = sorted(
        (finding for finding in findings if finding.repairable), key=lambda finding: order.index(finding.kind)
    )
    repairs = []
    for finding in repairable:
        try:
            note = store.database.write(partial(_cure, finding=finding))
        except StoreError as error:
            note = f"{error}"
        repairs.append(Repair(finding, note in ("", GONE), note))
    return repairs


def _cure(connection: Connection, finding: Fault) -> str:
    """Cure a finding; return the reason for not doing so, or ""."""
    if finding.kind in _OF_TASKS and not lock_if_free(connection, finding.key[0]):
        return HELD
    return "" if _CURES[finding.kind](connection, *finding.key) else GONE


def _lease(connection: Connection, uid: str, token: int) -> bool:
    leased = (task.c.uid == uid) & (task.c.lease_epoch == token) & task.c.lease_owner.is_not(None)
    return connection.scalar(sa.select(task.c.uid).where(leased)) is not None and lock_if_free(connection, uid)


def _unreachable(connection: Connection, name: str, *key: str | int) -> int:
    table = metadata.tables[name]
    if table is checkpoint:
        connection.execute(checkpoint_blob.delete().where(checkpoint_blob.c.checkpoint == key[0]))
    if table is trial:
        connection.execute(segment.delete().where(segment.c.study == key[0], segment.c.number == key[1]))
    condition = sa.and_(*(column == value for column, value in zip(table.primary_key.columns, key, strict=True)))
    return connection.execute(table.delete().where(condition)).rowcount


def _blob(connection: Connection, digest: str) -> int:
    return connection.execute(blob.update().where(blob.c.digest == digest).values(size=-1)).rowcount


def _size(connection: Connection, digest: str) -> int:
    length = sa.func.length(blob.c.data)
    return connection.execute(blob.update().where(blob.c.digest == digest).values(size=length)).rowcount


def _checkpoint(connection: Connection, uid: str, id: int, wrong: str) -> bool:
    ids = set(connection.scalars(sa.select(checkpoint.c.id).where(checkpoint.c.uid == uid)))
    if id not in ids:
        return False
    drop(connection, [id])
    if id == max(ids):  # otherwise training continued from it; a later damaged checkpoint has its own finding
        epochs = go_back(connection, uid, max(ids - {id}, default=None))
        add_events(connection, [(uid, "repaired", {"epochs": epochs, "damage": [wrong]})])
    return True


def _epochs(connection: Connection, uid: str) -> bool:
    last_epochs(connection, uid)
    return True


def _identity(connection: Connection, uid: str) -> int:
    empty = (task.c.uid == uid) & task.c.identity.is_(None) & ~sa.exists().where(checkpoint.c.uid == uid)
    if connection.scalar(sa.select(task.c.uid).where(empty)) is None:  # a worker has trained it since
        return 0
    for table in (metric, event, task):
        connection.execute(table.delete().where(table.c.uid == uid))
    return 1


def _metrics(connection: Connection, uid: str) -> int:
    later = metric.c.epoch > last_epochs(connection, uid)
    return connection.execute(metric.delete().where(metric.c.uid == uid, later)).rowcount


def _reopen(connection: Connection, name: str, number: int, rung: int) -> int:
    study_rows.revise(connection, name, rewrite=True)
    ended = (trial.c.study == name) & (trial.c.number == number) & trial.c.state.in_(["complete", "pruned"])
    connection.execute(trial.update().where(ended).values(state="running", finished=None))
    results = dict.fromkeys(("score", "digest", "objectives", "eval_steps", "eval_error"))
    values = {"state": "ready", **results}
    return connection.execute(segment.update().where(_segment(name, number, rung)).values(**values)).rowcount


def _close(connection: Connection, name: str, number: int, rung: int) -> int:
    study_rows.revise(connection, name, rewrite=True)
    ready = _segment(name, number, rung) & (segment.c.state == "ready")
    return connection.execute(segment.delete().where(ready)).rowcount


def _segment(name: str, number: int, rung: int) -> sa.ColumnElement[bool]:
    return (segment.c.study == name) & (segment.c.number == number) & (segment.c.rung == rung)


def _fail(connection: Connection, name: str, number: int) -> int:
    study_rows.revise(connection, name, rewrite=True)
    running = (trial.c.study == name) & (trial.c.number == number) & (trial.c.state == "running")
    values = {"state": "failed", "error": "its segment failed; the reason is not on record", "finished": Now()}
    return connection.execute(trial.update().where(running).values(**values)).rowcount


def _orphan(connection: Connection, digest: str) -> int:
    named = sa.exists().where(checkpoint_blob.c.digest == blob.c.digest)
    return connection.execute(blob.delete().where(blob.c.digest == digest, ~named)).rowcount


# Functions of a connection and the finding's key, which return a true value if there was something to cure. They run in
# this order: leases first, which frees the tasks of dead processes; then each kind after the kinds that affect it;
# orphans last.
_CURES: dict[str, Callable[..., int]] = {
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
_OF_TASKS = {"checkpoint", "task-epochs", "task-identity", "metrics"}  # cured only if no process holds the task
