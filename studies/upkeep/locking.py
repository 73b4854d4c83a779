"""Locks on tasks that no process holds, for maintenance transactions."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from ..storage.locks.fencing import HOLDER, why_free
from ..storage.sql.schema import Now, checkpoint, task


def lock_if_free(connection: Connection, uid: str, dry_run: bool = False) -> bool:
    """Lock a free task until this transaction ends, ending a stale lease.

    A stale lease belongs to a process that died or fell silent. If that process wakes up, its writes are refused. With
    ``dry_run``, nothing is locked or ended.

    Returns:
        False, without a lock, if a living process holds the task or the task does not exist.
    """
    query = sa.select(*HOLDER).where(task.c.uid == uid)
    row = connection.execute(query if dry_run else query.with_for_update()).one_or_none()
    if row is None or why_free(*row) is None:
        return False
    if not dry_run and row.lease_owner is not None:
        connection.execute(task.update().where(task.c.uid == uid).values(lease_owner=None, lease_expires=Now()))
    return True


def last_epochs(connection: Connection, uid: str) -> int:
    """Set a task's epochs to its last checkpoint's, and return them.

    They are 0 without a checkpoint.
    """
    c = checkpoint.c
    query = sa.select(c.epochs).where(c.uid == uid).order_by(c.id.desc()).limit(1)
    epochs = connection.scalar(query) or 0
    connection.execute(task.update().where(task.c.uid == uid).values(epochs=epochs))
    return epochs
