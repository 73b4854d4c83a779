"""Branches: tasks that start from another task's checkpoint.

A branch has its own checkpoint row, which refers to the same blobs. The initial state is kept as long as the branch,
both as the branch's first checkpoint and as the other task's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from .sql.schema import Now, checkpoint, checkpoint_blob, event, task
from .sql.writes import add_events, add_task

BRANCH, BRANCHED = "branch", "branched"  # events of the new task, and of its parent


@dataclass(frozen=True)
class Start:
    """Initial state of a branch, taken from another task.

    Attributes:
        uid: uid of the other task.
        epochs: epochs after which the state is taken.
        digest: digest of the state.
    """

    uid: str
    epochs: int
    digest: str

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Start:
        """Return the start that the data of a BRANCH event record."""
        return cls(data["parent"], data["epochs"], data["state"])


def create_branch(connection: Connection, uid: str, identity: Mapping[str, Any], start: Start) -> bool:
    """Create a task that starts from another task's state.

    Repeating the call changes nothing. If the state is no longer stored, the task is created without a checkpoint.

    Returns:
        Whether the task has a checkpoint.
    """
    add_task(connection, uid, dict(identity))
    noted = sa.select(event.c.id).where(event.c.uid == uid, event.c.kind == BRANCH).limit(1)
    if connection.scalar(noted) is None:
        at = {"epochs": start.epochs, "state": start.digest}
        events = [(uid, BRANCH, {**at, "parent": start.uid}), (start.uid, BRANCHED, {**at, "to": uid})]
        parent = connection.scalar(sa.select(task.c.uid).where(task.c.uid == start.uid))
        add_events(connection, events if parent else events[:1])  # it may be deleted
    c = checkpoint.c
    if connection.execute(sa.select(c.id).where(c.uid == uid).limit(1)).first() is not None:
        return True
    query = sa.select(c.id, c.manifest, c.within_epoch).where(
        c.uid == start.uid, c.epochs == start.epochs, c.digest == start.digest
    )
    source = connection.execute(query.limit(1).with_for_update(read=True)).first()  # the lock prevents its removal
    if source is None:
        return False
    values = {"uid": uid, "epochs": start.epochs, "digest": start.digest, "lease_epoch": 0, "created": Now()}
    values |= {"manifest": source.manifest, "within_epoch": source.within_epoch}
    copy = checkpoint.insert().values(values).returning(c.id)
    id = connection.execute(copy).scalar_one()
    names = sa.select(sa.literal(id), checkpoint_blob.c.digest).where(checkpoint_blob.c.checkpoint == source.id)
    connection.execute(checkpoint_blob.insert().from_select(["checkpoint", "digest"], names))
    connection.execute(task.update().where(task.c.uid == uid).values(epochs=start.epochs))
    return True


def kept_checkpoints(connection: Connection, uids: Collection[str]) -> set[int]:
    """Return the ids of these tasks' checkpoints from which branches start."""
    kinds = event.c.kind.in_([BRANCH, BRANCHED])
    notes = connection.execute(sa.select(event.c.uid, event.c.data).where(event.c.uid.in_(uids), kinds)).all()
    states = {(uid, data.get("state")) for uid, data in notes}
    if not states:
        return set()
    c = checkpoint.c
    rows = connection.execute(sa.select(c.id, c.uid, c.digest).where(c.uid.in_({uid for uid, _ in states})))
    return {id for id, uid, digest in rows if (uid, digest) in states}
