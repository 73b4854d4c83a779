"""Reads a study from a file: checked whole, then stored task by task, and the study last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import IdentityMismatch, StudyMismatch, TaskBusy, UnknownStudy
from ..storage import trials as ledger
from ..storage.checkpoints import put_blobs
from ..storage.locks.owner import Owner
from ..storage.rows import Segment, Trial
from ..storage.sql.database import insert
from ..storage.sql.schema import checkpoint, checkpoint_blob, event, metric, segment, study, task, trial
from ..storage.store import Store
from ..study.config import Config
from . import archive_rows as form
from .archive import Archive
from .archive_rows import Row, Transferred
from .locking import last_epochs, lock_free


def import_study(store: Store, path: Path) -> Transferred:
    """Stores the study of a file.

    BadArchive if the file is not whole; StudyMismatch, IdentityMismatch or StoreError name what differs from what is
    there. Tasks come one by one and the study last, so that an import that was interrupted is run again.
    """
    with Archive(path) as archive:
        content = form.index(archive)
        form.verify(archive, content)
        own = content["study"]
        Config.from_json(own["config"], own["name"])
        trials = [Trial(**row) for row in form.rows(archive, "trials")]
        segments = [Segment(**row) for row in form.rows(archive, "segments")]
        store._database.read(lambda connection: _compare(connection, own, trials, segments))
        new = _import_tasks(store, archive)
        store._database.write(lambda connection: _import_study(connection, own, trials, segments))
        tasks, checkpoints = (sum(1 for _ in form.rows(archive, part)) for part in ("tasks", "checkpoints"))
        return Transferred(own["name"], len(trials), tasks, checkpoints, len(archive), new)


def _compare(connection: Connection, own: Row, trials: list[Trial], segments: list[Segment]) -> bool:
    """Whether the study is there; StudyMismatch if it is, with other content."""
    try:
        found = ledger.get_study(connection, own["name"])
    except UnknownStudy:
        return False
    rows = ledger.trials(connection, found.name), ledger.segments(connection, found.name)
    there = {"config": found.config, **_flat(*rows)}
    given = {"config": own["config"], **_flat(trials, segments)}
    differing = [key for key in {**there, **given} if _same(there.get(key)) != _same(given.get(key))]
    if differing:
        shown = "; ".join(_difference(key, there.get(key), given.get(key)) for key in differing[:3])
        raise StudyMismatch(
            f"a study is imported where there is none of its name, or the same, but {own['name']!r} is there, and "
            f"{len(differing)} things differ: {shown}; import it into another database"
        )
    return True


def _flat(trials: Iterable[Trial], segments: Iterable[Segment]) -> Row:
    times = ("created", "finished")
    rows = {f"trial {row.number}": {k: v for k, v in asdict(row).items() if k not in times} for row in trials}
    return {**rows, **{f"segment {row.rung} of trial {row.number}": asdict(row) for row in segments}}


def _same(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _difference(key: str, there: Row | None, given: Row | None) -> str:
    if there is None or given is None:
        return f"{key} is only in the {'file' if there is None else 'database'}"
    names = [name for name in {**there, **given} if _same(there.get(name)) != _same(given.get(name))]
    return f"{key} differs in {', '.join(names)}"


def _import_tasks(store: Store, archive: Archive) -> int:
    """Stores the tasks; how many checkpoints are new."""
    groups = {part: _Groups(form.rows(archive, part)) for part in ("checkpoints", "metrics", "events")}
    new = 0
    for row in form.rows(archive, "tasks"):
        mine = {part: groups[part].of(row["uid"]) for part in groups}
        new += store._database.write(partial(_task, archive=archive, row=row, mine=mine))
    return new


class _Groups:
    """Rows by their uids, which rise."""

    def __init__(self, rows: Iterator[Row]):
        self._groups = groupby(rows, key=lambda row: row["uid"])
        self._next = self._take()

    def _take(self) -> tuple[str, list[Row]] | None:
        found = next(self._groups, None)
        return None if found is None else (found[0], list(found[1]))

    def of(self, uid: str) -> list[Row]:
        if self._next is None or self._next[0] != uid:
            return []
        rows, self._next = self._next[1], self._take()
        return rows


def _task(connection: Connection, archive: Archive, row: Row, mine: Mapping[str, list[Row]]) -> int:
    """Stores one task, or what the database lacks of it; how many checkpoints that were."""
    uid = row["uid"]
    new = insert(connection, task).values(**row, lease_epoch=0, lease_expires=0, epochs=0)
    fresh = connection.execute(new.on_conflict_do_nothing().returning(task.c.uid)).first() is not None
    stored = connection.execute(sa.select(task).where(task.c.uid == uid)).one()
    if None not in (stored.identity, row["identity"]) and _same(stored.identity) != _same(row["identity"]):
        raise IdentityMismatch(
            f"a uid belongs to one task, but task {uid} of {archive.path} has another identity than "
            "the one in the database; import the file into another database"
        )
    missing = _missing(connection, archive, uid, mine["checkpoints"])
    nameless = stored.identity is None and row["identity"] is not None
    if (missing or fresh or nameless) and not lock_free(connection, uid):
        holder = Owner.parse(stored.lease_owner or "")
        raise TaskBusy(uid, stored.lease_owner or "", holder.host, holder.pid, 0.0)
    if nameless:
        connection.execute(task.update().where(task.c.uid == uid).values(identity=row["identity"]))
    for each in missing:
        _checkpoint(connection, archive, each)
    if missing:
        last_epochs(connection, uid)
    if mine["metrics"]:
        connection.execute(insert(connection, metric).on_conflict_do_nothing(), mine["metrics"])
    known = connection.scalar(sa.select(event.c.id).where(event.c.uid == uid).limit(1))
    if known is None and mine["events"]:
        connection.execute(event.insert(), mine["events"])
    return len(missing)


def _missing(connection: Connection, archive: Archive, uid: str, given: list[Row]) -> list[Row]:
    """The checkpoints that lie after those of the database; StudyMismatch if another one is in their place."""
    c = checkpoint.c
    rows = connection.execute(sa.select(c.epochs, c.digest).where(c.uid == uid).order_by(c.id))
    there = {row.epochs: row.digest for row in rows}
    for row in given:
        epochs, digest = row["epochs"], row["digest"]
        if there.get(epochs, digest) != digest:
            raise StudyMismatch(
                f"a task has one state at a time, but after {epochs} epochs task {uid} has the digest "
                f"{there[epochs][:12]} in the database and {digest[:12]} in {archive.path}; "
                "import the file into another database"
            )
    last = max(there, default=-1)
    return [row for row in given if row["epochs"] > last]


def _checkpoint(connection: Connection, archive: Archive, row: Row) -> None:
    manifest = archive.checked("manifests", row["digest"])
    digests = sorted(form.blobs_of(archive, row["digest"]))
    put_blobs(connection, dict.fromkeys(digests, archive))
    new = checkpoint.insert().values(**row, manifest=manifest, lease_epoch=0).returning(checkpoint.c.id)
    id = connection.execute(new).scalar_one()
    if digests:
        connection.execute(checkpoint_blob.insert(), [{"checkpoint": id, "digest": digest} for digest in digests])


def _import_study(connection: Connection, own: Row, trials: list[Trial], segments: list[Segment]) -> None:
    if _compare(connection, own, trials, segments):
        return
    name = own["name"]
    connection.execute(study.insert().values(**own))
    if trials:
        connection.execute(trial.insert(), [{**asdict(row), "study": name} for row in trials])
    if segments:
        connection.execute(segment.insert(), [{**asdict(row), "study": name} for row in segments])
