"""Checks of tasks' rows: leases, epochs, metrics, and orphans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..storage.locks.fencing import why_free
from ..storage.locks.owner import Owner
from ..storage.sql.columns import Json, parse_json
from ..storage.sql.schema import Now, checkpoint, checkpoint_blob, event, metadata, metric, segment, study, task, trial
from .findings import Finding

COLLECTED = "collected"  # the event of a task whose checkpoints were dropped because nothing needs them


def _json(connection: Connection) -> list[Finding]:
    """Find columns without valid JSON.

    They are read as text, since a checked column ends a whole query.
    """
    findings = []
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
                    findings.append(Finding("json", row, f"{column.name} is {str(text)[:40]!r}: {error}", tuple(key)))
    return findings


def _leases(connection: Connection) -> list[Finding]:
    c = task.c
    query = sa.select(c.uid, c.lease_owner, c.lease_epoch, c.lease_expires - Now()).where(c.lease_owner.is_not(None))
    findings = []
    for uid, text, token, seconds in connection.execute(query.order_by(c.uid)):
        owner = Owner.parse(text)
        why = "is dead" if owner.is_dead() else f"fell silent {-seconds:.0f} s ago" if seconds <= 0 else ""
        if why:
            wrong = f"process {owner.pid} on {owner.host} {why}"
            findings.append(Finding("lease", f"task {uid}", wrong, (uid, token)))
    return findings


def _tasks(connection: Connection) -> list[Finding]:
    c = task.c
    has = sa.exists().where(checkpoint.c.uid == c.uid)
    waited = sa.exists().where(trial.c.uid == c.uid, trial.c.state == "running")
    query = sa.select(c.uid, has).where(c.identity.is_(None), ~waited, c.lease_owner.is_(None))
    return [
        Finding("task-lost", f"task {uid}", "it has none", (uid,))
        if stored
        else Finding("task-identity", f"task {uid}", "it has neither", (uid,))
        for uid, stored in connection.execute(query.order_by(c.uid))
    ]


def _last() -> Any:
    """Return the epochs of a task's last checkpoint, as SQL."""
    newest = sa.select(checkpoint.c.epochs).where(checkpoint.c.uid == task.c.uid)
    return newest.order_by(checkpoint.c.id.desc()).limit(1).scalar_subquery()


def _epochs(connection: Connection) -> list[Finding]:
    last = sa.func.coalesce(_last(), 0)
    query = sa.select(task.c.uid, task.c.epochs, last).where(task.c.epochs != last).order_by(task.c.uid)
    return [
        Finding("task-epochs", f"task {uid}", f"it has {epochs}, and the checkpoint {stored}", (uid,))
        for uid, epochs, stored in connection.execute(query)
    ]


def _metrics(connection: Connection) -> list[Finding]:
    """Find metrics after the last checkpoint of free tasks.

    They are no finding if their states were dropped on purpose.

    A process that is killed between two checkpoints leaves such rows; the next one writes the same again.
    """
    c = task.c
    over = (metric.c.uid == c.uid) & (metric.c.epoch > sa.func.coalesce(_last(), 0))
    lease = (c.uid, c.lease_owner, c.lease_epoch, c.lease_expires)
    query = sa.select(*lease[:3], c.lease_expires - Now(), sa.func.count(), sa.func.max(metric.c.epoch))
    findings = []
    for *held, count, epoch in connection.execute(
        query.join_from(task, metric, over).group_by(*lease).order_by(c.uid)
    ).all():
        uid = held[0]
        if why_free(*held) is not None and epoch > collected(connection, uid) and not keeps_none(connection, uid):
            findings.append(Finding("metrics", f"task {uid}", f"{count} go on after it, until epoch {epoch}", (uid,)))
    return findings


def collected(connection: Connection, uid: str) -> int:
    """Return the epochs of a task's furthest state that gc dropped."""
    query = sa.select(sa.type_coerce(event.c.data, sa.Text)).where(event.c.uid == uid, event.c.kind == COLLECTED)
    most = 0
    for text in connection.scalars(query):
        try:
            epochs = parse_json(text)["until"]
        except (ValueError, TypeError, KeyError):
            continue
        most = max(most, epochs if isinstance(epochs, int) else 0)
    return most


def keeps_none(connection: Connection, uid: str) -> bool:
    """Return whether a task was last trained without checkpoints, on purpose."""
    query = sa.select(sa.type_coerce(event.c.data, sa.Text)).where(event.c.uid == uid, event.c.kind == "init")
    text = connection.scalars(query.order_by(event.c.id.desc()).limit(1)).first()
    try:
        return text is not None and parse_json(text).get("snapshots") == "no"
    except (ValueError, AttributeError):
        return False


PARENTS = (
    (checkpoint, (checkpoint.c.id,), checkpoint.c.uid == task.c.uid, "task"),
    (metric, (metric.c.uid, metric.c.epoch), metric.c.uid == task.c.uid, "task"),
    (event, (event.c.id,), event.c.uid == task.c.uid, "task"),
    (
        checkpoint_blob,
        (checkpoint_blob.c.checkpoint, checkpoint_blob.c.digest),
        checkpoint_blob.c.checkpoint == checkpoint.c.id,
        "checkpoint",
    ),
    (trial, (trial.c.study, trial.c.number), trial.c.study == study.c.name, "study"),
    (
        segment,
        (segment.c.study, segment.c.number, segment.c.rung),
        (segment.c.study == trial.c.study) & (segment.c.number == trial.c.number),
        "trial",
    ),
)


def _unreachable(connection: Connection) -> list[Finding]:
    """Find rows whose parents do not exist.

    Foreign keys forbid such rows where a database enforces the keys.
    """
    return list(_lost(connection))


def _lost(connection: Connection) -> Iterator[Finding]:
    for table, keys, parent, name in PARENTS:
        query = sa.select(*keys).where(~sa.exists().where(parent)).order_by(*keys)
        for row in connection.execute(query):
            name_of_row = f"{table.name} {' '.join(map(str, row))[:80]}"
            yield Finding("unreachable", name_of_row, f"its {name} is not there", (table.name, *row))


CHECKS = (_json, _leases, _tasks, _epochs, _metrics, _unreachable)
