"""Which checkpoints of a task are kept, and the dropping of those that are not."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from ..tasks.storage import Metrics
from . import branches
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


def prune(connection: Connection, uids: Collection[str], keep: Keep) -> None:
    """Drops the checkpoints of these tasks that ``keep`` lets go and no branch starts from.

    Those of as many epochs as the newest row, or more, go as well: they are there only if training went back to an
    earlier checkpoint, and then they are of a past that is gone.
    """
    c = checkpoint.c
    rows: dict[str, list[tuple[int, int]]] = {uid: [] for uid in uids}
    for uid, id, epochs in connection.execute(sa.select(c.uid, c.id, c.epochs).where(c.uid.in_(uids)).order_by(c.id)):
        rows[uid].append((epochs, id))
    gone: set[int] = set()
    for uid, found in rows.items():
        last, _ = found[-1]
        kept = dict(row for row in found[:-1] if row[0] < last) | dict(found[-1:])
        gone |= {id for _, id in found} - set(kept.values())
        gone |= {kept[epochs] for epochs in keep.dropped(kept, _measured(connection, uid, kept, keep))}
    drop(connection, gone - branches.kept(connection, uids) if gone else gone)


def _measured(connection: Connection, uid: str, epochs: Collection[int], keep: Keep) -> dict[int, Metrics]:
    if not keep.best:
        return {}
    query = sa.select(metric.c.epoch, metric.c.data).where(metric.c.uid == uid, metric.c.epoch.in_(epochs))
    return {row.epoch: row.data for row in connection.execute(query)}


def drop(connection: Connection, checkpoints: Iterable[int]) -> None:
    """Deletes checkpoints by their ids, and every blob that no other checkpoint names."""
    ids = sorted(checkpoints)
    if not ids:
        return
    named = checkpoint_blob.c.checkpoint.in_(ids)
    # locked in one order: of two that drop the last two names of a blob at once, the second sees what the first did
    query = sa.select(blob.c.digest).join(checkpoint_blob).where(named).order_by(blob.c.digest)
    digests = list(dict.fromkeys(connection.scalars(query.with_for_update(of=blob, key_share=True))))
    connection.execute(checkpoint_blob.delete().where(named))
    connection.execute(checkpoint.delete().where(checkpoint.c.id.in_(ids)))
    elsewhere = sa.exists().where(checkpoint_blob.c.digest == blob.c.digest)
    for i in range(0, len(digests), CHUNK):
        connection.execute(blob.delete().where(blob.c.digest.in_(digests[i : i + CHUNK]), ~elsewhere))
