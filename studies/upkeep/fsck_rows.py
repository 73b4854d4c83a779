"""Checks of tasks' rows: leases, epochs, metrics, and orphans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..storage.locks.fencing import why_free
from ..storage.locks.owner import Owner
from ..storage.retention import INIT
from ..storage.sql.columns import Json
from ..storage.sql.schema import BLOB_IN_USE, Now, checkpoint, event, metadata, metric, task, trial
from .findings import Finding

COLLECTED = "collected"  # the event of a task whose checkpoints were dropped because nothing needs them


def _json(connection: Connection) -> Iterator[Finding]:
    """Find columns without valid JSON.

    They are read as text, since a checked column ends a whole query.
    """
    for table in metadata.sorted_tables:
        keys = list(table.primary_key.columns)
        for column in table.columns:
            kind = column.type
            if not isinstance(kind, Json):
                continue
            query = sa.select(*keys, sa.type_coerce(column, sa.Text)).where(column.is_not(None))
            for *key, text in connection.execute(query.execution_options(yield_per=500)):
                try:
                    kind.parse(text)
                except ValueError as error:
                    row = f"{table.name} {' '.join(map(str, key))}"
                    yield Finding("json", row, f"{column.name} is {str(text)[:40]!r}: {error}", tuple(key))


def _leases(connection: Connection) -> Iterator[Finding]:
    c = task.c
    query = sa.select(c.uid, c.lease_owner, c.lease_epoch, c.lease_expires - Now()).where(c.lease_owner.is_not(None))
    for uid, text, token, seconds in connection.execute(query.order_by(c.uid)):
        owner = Owner.parse(text)
        why = "is dead" if owner.is_dead() else f"fell silent {-seconds:.0f} s ago" if seconds <= 0 else ""
        if why:
            wrong = f"process {owner.pid} on {owner.host} {why}"
            yield Finding("lease", f"task {uid}", wrong, (uid, token))


def _tasks(connection: Connection) -> Iterator[Finding]:
    c = task.c
    has = sa.exists().where(checkpoint.c.uid == c.uid)
    waited = sa.exists().where(trial.c.uid == c.uid, trial.c.state == "running")
    query = sa.select(c.uid, has).where(c.identity.is_(None), ~waited, c.lease_owner.is_(None))
    for uid, stored in connection.execute(query.order_by(c.uid)):
        kind, wrong = ("task-lost", "it has none") if stored else ("task-identity", "it has neither")
        yield Finding(kind, f"task {uid}", wrong, (uid,))


def _last() -> Any:
    """Return the epochs of a task's last checkpoint, as SQL."""
    newest = sa.select(checkpoint.c.epochs).where(checkpoint.c.uid == task.c.uid)
    return newest.order_by(checkpoint.c.id.desc()).limit(1).scalar_subquery()


def _epochs(connection: Connection) -> Iterator[Finding]:
    last = sa.func.coalesce(_last(), 0)
    query = sa.select(task.c.uid, task.c.epochs, last).where(task.c.epochs != last).order_by(task.c.uid)
    for uid, epochs, stored in connection.execute(query):
        yield Finding("task-epochs", f"task {uid}", f"it has {epochs}, and the checkpoint {stored}", (uid,))


def _metrics(connection: Connection) -> Iterator[Finding]:
    """Find metrics after the last checkpoint of free tasks.

    They are no finding if their states were dropped on purpose.

    A process that is killed between two checkpoints leaves such rows; the next one writes the same again.
    """
    c = task.c
    over = (metric.c.uid == c.uid) & (metric.c.epoch > sa.func.coalesce(_last(), 0))
    lease = (c.uid, c.lease_owner, c.lease_epoch, c.lease_expires)
    query = sa.select(*lease[:3], c.lease_expires - Now(), sa.func.count(), sa.func.max(metric.c.epoch))
    query = query.join_from(task, metric, over).group_by(*lease).order_by(c.uid)
    for *held, count, epoch in connection.execute(query).all():
        uid = held[0]
        if why_free(*held) is not None and epoch > _collected(connection, uid) and not _keeps_none(connection, uid):
            yield Finding("metrics", f"task {uid}", f"{count} go on after it, until epoch {epoch}", (uid,))


def _collected(connection: Connection, uid: str) -> int:
    """Return the epochs of a task's furthest state that gc dropped."""
    epochs = [data.get("until") for data in _notes(connection, uid, COLLECTED)]
    return max((each for each in epochs if isinstance(each, int)), default=0)


def _keeps_none(connection: Connection, uid: str) -> bool:
    """Return whether a task was last trained without checkpoints, on purpose."""
    notes = _notes(connection, uid, INIT)
    return bool(notes) and notes[-1].get("snapshots") == "no"


def _notes(connection: Connection, uid: str, kind: str) -> list[dict[str, Any]]:
    """Return the data of a task's events of one kind; unreadable data as none."""
    query = sa.select(sa.type_coerce(event.c.data, sa.Text)).where(event.c.uid == uid, event.c.kind == kind)
    notes = []
    for text in connection.scalars(query.order_by(event.c.id)):
        try:
            notes.append(Json().parse(text))
        except ValueError:
            notes.append({})
    return notes


def _unreachable(connection: Connection) -> Iterator[Finding]:
    """Find rows whose parents do not exist.

    Foreign keys forbid such rows where a database enforces the keys. A missing blob is a finding of its checkpoint.
    """
    for table in metadata.sorted_tables:
        for parent in table.foreign_key_constraints:
            if parent.name == BLOB_IN_USE:
                continue
            same = sa.and_(*(key.parent == key.column for key in parent.elements))
            query = sa.select(*table.primary_key).where(~sa.exists().where(same)).order_by(*table.primary_key)
            for row in connection.execute(query):
                place = f"{table.name} {' '.join(map(str, row))[:80]}"
                lost = parent.referred_table.name.removeprefix("rk_")
                yield Finding("unreachable", place, f"its {lost} is not there", (table.name, *row))


CHECKS = (_json, _leases, _tasks, _epochs, _metrics, _unreachable)
