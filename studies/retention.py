"""Which checkpoints of a task are kept, and the dropping of those that are not."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from ..tasks.storage import Metrics
from .schema import blob, checkpoint, checkpoint_blob, metric

CHUNK = 500  # values in one IN (...)


@dataclass(frozen=True)
class Keep:
    """Keeps the latest checkpoints, and the best by a metric.

    Attributes:
        latest: how many of the newest; None keeps all. With two, a damaged one has a sound one before it.
        best: how many of those with the highest metric.
        metric: its name.
    """

    latest: int | None = 2
    best: int = 0
    metric: str = "return"

    def __post_init__(self) -> None:
        if self.latest is not None and self.latest < 1:
            raise ValueError(f"Keep: latest must be at least 1, or None for all, but got {self.latest}")
        if self.best < 0:
            raise ValueError(f"Keep: best must be at least 0, but got {self.best}")

    def dropped(self, epochs: Collection[int], metrics: Mapping[int, Metrics]) -> set[int]:
        """The epochs, of those given, whose checkpoints go; ``metrics`` are by epoch."""
        if self.latest is None:
            return set()
        newest = sorted(epochs, reverse=True)[: self.latest]
        scores = {epoch: metrics.get(epoch, {}).get(self.metric, math.nan) for epoch in epochs}
        ranked = sorted((-score, epoch) for epoch, score in scores.items() if not math.isnan(score))
        return set(epochs) - set(newest) - {epoch for _, epoch in ranked[: self.best]}


def prune(connection: Connection, uid: str, keep: Keep) -> None:
    """Drops the checkpoints of a task that ``keep`` lets go.

    Those of as many epochs as the newest row, or more, go as well: they are there only if training went back to an
    earlier checkpoint, and then they are of a past that is gone.
    """
    query = sa.select(checkpoint.c.id, checkpoint.c.epochs).where(checkpoint.c.uid == uid).order_by(checkpoint.c.id)
    *rows, (newest, last) = connection.execute(query).all()
    older = {epochs: id for id, epochs in rows if epochs < last}
    gone = {id for id, _ in rows} - set(older.values())
    kept = {**older, last: newest}
    if keep.latest is not None and len(kept) > keep.latest:
        measured: dict[int, Metrics] = {}
        if keep.best:
            found = sa.select(metric.c.epoch, metric.c.data).where(metric.c.uid == uid, metric.c.epoch.in_(list(kept)))
            measured = {row.epoch: row.data for row in connection.execute(found)}
        gone |= {kept[epochs] for epochs in keep.dropped(kept, measured)}
    drop(connection, gone)


def drop(connection: Connection, checkpoints: Iterable[int]) -> None:
    """Deletes checkpoints by their ids, and every blob that no other checkpoint names."""
    ids = sorted(checkpoints)
    if not ids:
        return
    named = checkpoint_blob.c.checkpoint.in_(ids)
    digests = sorted(set(connection.scalars(sa.select(checkpoint_blob.c.digest).where(named))))
    connection.execute(checkpoint_blob.delete().where(named))
    connection.execute(checkpoint.delete().where(checkpoint.c.id.in_(ids)))
    elsewhere = sa.exists().where(checkpoint_blob.c.digest == blob.c.digest)
    for i in range(0, len(digests), CHUNK):
        connection.execute(blob.delete().where(blob.c.digest.in_(digests[i : i + CHUNK]), ~elsewhere))
