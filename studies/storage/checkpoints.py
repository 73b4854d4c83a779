"""Checkpoints as rows: a manifest each, and blobs that are stored once.

A blob is named by its sha256, which is verified on reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.manifests import is_within_epoch
from ...tasks.checkpoint.storage import Metrics, Saved, Write
from ...tasks.errors import PLAYED
from ..errors import DamagedCheckpoint
from .retention import drop, metrics_at
from .sql.database import Database
from .sql.schema import Now, blob, checkpoint, checkpoint_blob, event, metric, task
from .sql.writes import chunks, insert, rows_with


def put_blobs(connection: Connection, names: Iterable[str], data_of: Callable[[str], bytes]) -> None:
    """Store the named blobs that are missing or known to be damaged.

    `data_of` is called for those only, as serializing is expensive.
    """
    digests = sorted(names)  # always in this order, so that two writers cannot deadlock
    rows = rows_with(connection, sa.select(blob.c.digest, blob.c.size), blob.c.digest, digests)
    stored = {row.digest: row.size for row in rows}
    for digest in digests:
        if stored.get(digest, -1) < 0:
            data = data_of(digest)
            new = insert(connection, blob).values(digest=digest, size=len(data), data=data)
            update = {"size": new.excluded.size, "data": new.excluded.data}
            connection.execute(new.on_conflict_do_update(index_elements=["digest"], set_=update))


def put_checkpoint(connection: Connection, write: Write, token: int) -> None:
    """Add the checkpoint of a write, whose blobs must be stored already.

    Raises:
        ValueError: the given digest is not the manifest's.
    """
    assert write.manifest is not None
    digest = hashlib.sha256(write.manifest).hexdigest()
    if write.digest not in (None, digest):
        raise ValueError(
            f"a digest is the sha256 of its manifest, but task {write.lease.uid} gave {write.digest} for {digest}"
        )
    row = {"uid": write.lease.uid, "epochs": write.epochs, "digest": digest, "manifest": write.manifest}
    add_checkpoint(connection, write.blobs, {**row, "lease_epoch": token, "created": Now()})
    connection.execute(task.update().where(task.c.uid == write.lease.uid).values(epochs=write.epochs))


def add_checkpoint(connection: Connection, names: Iterable[str], row: Mapping[str, Any]) -> None:
    """Add a checkpoint row and its references to blobs."""
    values = {**row, "within_epoch": int(is_within_epoch(row["manifest"]))}
    id = connection.execute(checkpoint.insert().values(values).returning(checkpoint.c.id)).scalar_one()
    if named := [{"checkpoint": id, "digest": digest} for digest in sorted(names)]:
        connection.execute(checkpoint_blob.insert(), named)


def put_metrics(connection: Connection, rows: Iterable[tuple[str, int, Metrics]]) -> None:
    """Add (uid, epoch, metrics), replacing those of the same epochs."""
    values = [{"uid": uid, "epoch": epoch, "data": dict(data)} for uid, epoch, data in rows]
    if values:
        new = insert(connection, metric)
        update = {"data": new.excluded.data}
        connection.execute(new.on_conflict_do_update(index_elements=["uid", "epoch"], set_=update), values)


def metrics_until(connection: Connection, uid: str, epochs: int | None = None) -> list[tuple[int, Metrics]]:
    """Return (epoch, metrics) in order, up to and including ``epochs``."""
    query = sa.select(metric.c.epoch, metric.c.data).where(metric.c.uid == uid).order_by(metric.c.epoch)
    if epochs is not None:
        query = query.where(metric.c.epoch <= epochs)
    return [(epoch, data) for epoch, data in connection.execute(query)]


def merge_metrics(connection: Connection, uid: str, rows: Sequence[tuple[int, Metrics]]) -> None:
    """Merge metrics into those stored for the same epochs."""
    if not rows:
        return
    measures = metrics_at(connection, uid, [epoch for epoch, _ in rows])
    merged = [(epoch, {**measures.get(epoch, {}), **data}) for epoch, data in rows]
    put_metrics(connection, [(uid, epoch, data) for epoch, data in merged if measures.get(epoch) != data])


def go_back(connection: Connection, uid: str, last: int | None) -> int:
    """Drop later checkpoints and metrics of a task; return its epochs.

    ``last`` is the id of the checkpoint to go back to, None to drop all. One within an epoch has as many epochs as the
    one before it, and those of a first epoch have none, so epochs alone do not tell which are later.
    """
    c = checkpoint.c
    epochs = connection.scalar(sa.select(c.epochs).where(c.uid == uid, c.id == last)) or 0
    later = sa.true() if last is None else sa.or_(c.id > last, c.epochs > epochs)
    drop(connection, connection.scalars(sa.select(c.id).where(c.uid == uid, later)).all())
    connection.execute(metric.delete().where(metric.c.uid == uid, metric.c.epoch > epochs))
    connection.execute(task.update().where(task.c.uid == uid).values(epochs=epochs))
    return int(epochs)


def mark_damaged(connection: Connection, digests: Collection[str]) -> None:
    """Let the next writer of these blobs replace them.

    A damaged blob may be referenced by other checkpoints, so its row stays. Since training is exact, the same blob is
    produced again, and any process that has the right bytes replaces it.
    """
    for some in chunks(sorted(digests)):
        connection.execute(blob.update().where(blob.c.digest.in_(some)).values(size=-1))


@dataclass(frozen=True)
class Damage:
    """Damage of a checkpoint; ``blobs`` are the digests of damaged blobs."""

    uid: str
    epochs: int
    defect: str
    blobs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"the checkpoint of task {self.uid} at {self.epochs} epochs is damaged: {self.defect}"


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint without its blobs."""

    id: int
    epochs: int
    digest: str
    manifest: bytes


class Reader:
    """Reader of the checkpoints of one task."""

    def __init__(self, database: Database, uid: str):
        self.database, self.uid = database, uid

    def heads(self, epochs: int | None = None, digest: str | None = None) -> list[StoredCheckpoint]:
        """Return the checkpoints, newest first.

        With ``epochs``, only those at the end of that epoch; with ``digest``, only those of this state.
        """
        c = checkpoint.c
        query = sa.select(c.id, c.epochs, c.digest, c.manifest).where(c.uid == self.uid).order_by(c.id.desc())
        if epochs is not None:
            query = query.where(c.epochs == epochs, c.within_epoch == 0)
        if digest is not None:
            query = query.where(c.digest == digest)
        rows = self.database.read(lambda connection: connection.execute(query).all())
        return [StoredCheckpoint(id, epochs, digest, bytes(manifest)) for id, epochs, digest, manifest in rows]

    def last(self, epochs: int | None = None, digest: str | None = None) -> Saved | None:
        """Return the newest of the checkpoints that `heads` returns, or None.

        Blobs are verified when they are fetched.

        Raises:
            DamagedCheckpoint: the checkpoint is damaged; the message names the newest intact one before it.
        """
        rows = self.heads(epochs, digest)
        return self.saved(rows) if rows else None

    def sound(self) -> tuple[list[StoredCheckpoint], list[Damage]]:
        """Return the checkpoints from the newest intact one on, and later damages."""
        damages: list[Damage] = []
        rows = self.heads()
        for index, row in enumerate(rows):
            damage = self.examine(row)
            if damage is None:
                return rows[index:], damages
            damages.append(damage)
        return [], damages

    def examine(self, row: StoredCheckpoint) -> Damage | None:
        """Read every byte of a checkpoint; return its damage, None if intact.

        Only one blob at a time is held in memory.
        """
        if wrong := _wrong_manifest(row):
            return Damage(self.uid, row.epochs, wrong)
        query = sa.select(checkpoint_blob.c.digest).where(checkpoint_blob.c.checkpoint == row.id)
        names = self.database.read(lambda connection: connection.scalars(query).all())
        bad = {name: wrong for name in names if (wrong := self._blob(name)[1])}
        return Damage(self.uid, row.epochs, "; ".join(bad.values()), tuple(bad)) if bad else None

    def saved(self, rows: Sequence[StoredCheckpoint]) -> Saved:
        """Return the first of these checkpoints in the form that tasks load.

        The others are older and serve as alternatives in error messages.
        """
        row = rows[0]

        def damaged(wrong: str) -> DamagedCheckpoint:
            before = next((checkpoint.epochs for checkpoint in rows[1:] if not self.examine(checkpoint)), None)
            return DamagedCheckpoint(f"{Damage(self.uid, row.epochs, wrong)}. {_cure(before)}")

        def fetch(digest: str) -> bytes:
            data, wrong = self._blob(digest)
            if wrong:
                raise damaged(wrong)
            return data

        if wrong := _wrong_manifest(row):
            raise damaged(wrong)
        metrics = self.database.read(lambda connection: metrics_until(connection, self.uid, row.epochs))
        wanted = event.c.uid == self.uid, event.c.kind.in_(("init", PLAYED))
        query = sa.select(event.c.kind, event.c.data).where(*wanted).order_by(event.c.id)
        starts = self.database.read(lambda connection: connection.execute(query).all())
        last = {start.kind: start.data for start in starts}
        return Saved(row.epochs, row.manifest, fetch, row.digest, metrics, last.get("init", {}), last.get(PLAYED, {}))

    def _blob(self, digest: str) -> tuple[bytes, str]:
        query = sa.select(blob.c.size, blob.c.data).where(blob.c.digest == digest)
        row = self.database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return b"", f"blob {digest[:12]} is missing"
        data = bytes(row.data)
        if hashlib.sha256(data).hexdigest() == digest:
            return data, ""
        if len(data) != row.size and row.size >= 0:
            return data, f"blob {digest[:12]} has {len(data)} of its {row.size} bytes"
        return data, f"blob {digest[:12]} ({len(data)} bytes) does not have the sha256 that names it"


def _wrong_manifest(row: StoredCheckpoint) -> str:
    if hashlib.sha256(row.manifest).hexdigest() == row.digest:
        return ""
    return f"its manifest ({len(row.manifest)} bytes) does not have the sha256 on record"


def none_sound(damages: Iterable[Damage]) -> DamagedCheckpoint:
    """Return the error for a task whose checkpoints are all damaged."""
    return DamagedCheckpoint(f"{'; '.join(map(str, damages))}. {_cure(None)}")


def _cure(before: int | None) -> str:
    if before is None:
        return "No sound one is left: restore the database from a copy, or start the task again with Lease.discard()"
    return f"The one at {before} epochs is sound: Lease.load(allow_previous=True) resumes from there"
