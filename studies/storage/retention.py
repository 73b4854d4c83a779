"""Removal of checkpoints that a task does not keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.retention import Keep as Keep
from ...tasks.checkpoint.storage import Metrics
from . import branches
from .branches import BRANCH, BRANCHED
from .rows import CheckpointRow, Event
from .sql.schema import blob, checkpoint, checkpoint_blob, event, metric
from .sql.writes import chunks

INIT = "init"  # event of every opening, with the task's retention


def prune(connection: Connection, uids: Collection[str], keep: Keep) -> None:
    """Drop checkpoints that neither ``keep`` retains nor any branch starts from.

    The newest is always kept. Older ones within an epoch are dropped: otherwise one could stand for the preceding
    epoch, and the best checkpoint would depend on when a signal came. Checkpoints with more epochs than the newest are
    dropped as well; they exist only if training went back to an earlier checkpoint, and belong to the discarded run.
    """
    c = checkpoint.c
    columns = sa.select(c.uid, c.id, c.epochs, c.within_epoch)
    rows: dict[str, list[Place]] = {uid: [] for uid in uids}
    for uid, *columns_of in connection.execute(columns.where(c.uid.in_(uids)).order_by(c.id)):
        rows[uid].append(Place(*columns_of))
    gone: set[int] = set()
    for uid, places in rows.items():
        gone |= {checkpoint.id for checkpoint in places} - kept_by(connection, uid, places, keep)
    drop(connection, gone - branches.kept_checkpoints(connection, uids) if gone else gone)


class Place(NamedTuple):
    """Position of a checkpoint in the training of its task."""

    id: int
    epochs: int
    within_epoch: int


def kept_by(connection: Connection, uid: str, places: Sequence[Place], keep: Keep) -> set[int]:
    """Return the ids of a task's checkpoints that a rule keeps.

    Args:
        connection: database connection.
        uid: uid of the task.
        places: its checkpoints, ordered by id.
        keep: the rule.
    """
    *before, last = places
    ends = {
        checkpoint.epochs: checkpoint.id
        for checkpoint in before
        if not checkpoint.within_epoch and checkpoint.epochs <= last.epochs
    }
    if not last.within_epoch:
        ends[last.epochs] = last.id
    measured = metrics_at(connection, uid, ends) if keep.best else {}
    dropped = keep.dropped(ends, measured, newer=last.within_epoch)
    return {last.id} | {id for epochs, id in ends.items() if epochs not in dropped}


def metrics_at(connection: Connection, uid: str, epochs: Collection[int]) -> dict[int, Metrics]:
    """Return the metrics of a task at the given epochs, by epoch."""
    query = sa.select(metric.c.epoch, metric.c.data).where(metric.c.uid == uid, metric.c.epoch.in_(epochs))
    return {row.epoch: row.data for row in connection.execute(query)}


def drop(connection: Connection, checkpoints: Iterable[int]) -> None:
    """Delete checkpoints by id, with blobs that no other checkpoint uses."""
    for some in chunks(sorted(checkpoints)):
        _drop(connection, some)


def _drop(connection: Connection, ids: Sequence[int]) -> None:
    named = checkpoint_blob.c.checkpoint.in_(ids)
    # Blobs are locked in order of digest. If two transactions drop the last two references to a blob, the second waits
    # and sees what the first did.
    query = sa.select(blob.c.digest).join(checkpoint_blob).where(named).order_by(blob.c.digest)
    digests = list(dict.fromkeys(connection.scalars(query.with_for_update(of=blob, key_share=True))))
    connection.execute(checkpoint_blob.delete().where(named))
    connection.execute(checkpoint.delete().where(checkpoint.c.id.in_(ids)))
    elsewhere = sa.exists().where(checkpoint_blob.c.digest == blob.c.digest)
    for some in chunks(digests):
        connection.execute(blob.delete().where(blob.c.digest.in_(some), ~elsewhere))


def reasons(checkpoints: Sequence[CheckpointRow], metrics: Mapping[int, Metrics], events: Sequence[Event]) -> list[str]:
    """Return why each checkpoint of a task is kept, as text.

    The order is that of the checkpoints, oldest first.
    """
    keep = last_mode([event.data for event in events if event.kind == INIT]) or Keep()
    ends = [row for row in checkpoints if not row.within_epoch]
    best = keep.ranked({row.epochs: metrics.get(row.epochs, {}) for row in ends})[: keep.best]
    branched = {event.data.get("state"): event for event in events if event.kind in (BRANCH, BRANCHED)}

    def of(row: CheckpointRow) -> Iterator[str]:
        if row is checkpoints[-1]:
            yield f"latest, within epoch {row.epochs + 1}" if row.within_epoch else "latest"
        if row in ends and row.epochs in best:
            yield f"best {keep.metric}, {metrics[row.epochs][keep.metric]:.5g}"
        if row in ends and keep.is_spaced(row.epochs):
            yield f"every {keep.spaced} epochs"
        if row in ends and keep.initial and row.epochs == 0:
            yield "untrained"
        if (event := branched.get(row.digest)) is not None:
            yield f"what {'it' if event.kind == BRANCH else str(event.data.get('to'))[:8]} started from"

    return [", ".join(of(row)) or "before the latest" for row in checkpoints]


def asked_for(connection: Connection, uid: str) -> Keep | None:
    """Return the retention with which a task was last opened.

    It is None if the task left the choice to the store.
    """
    inits = sa.select(event.c.data).where(event.c.uid == uid, event.c.kind == INIT).order_by(event.c.id)
    return last_mode(connection.scalars(inits).all())


def last_mode(inits: Sequence[Mapping[str, Any]]) -> Keep | None:
    """Return the retention in INIT events, None without any."""
    mode = inits[-1].get("snapshots") if inits else None
    try:
        return Keep(**mode) if isinstance(mode, dict) else None
    except (TypeError, ValueError):  # written by another version
        return None
