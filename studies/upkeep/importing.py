"""Import of an exported study.

The whole file is checked first. Then its tasks are stored one by one, and the study last:

    import_study(store, Path("cartpole.rekindle"))

A copy of the file is opened as a store and must pass fsck before any row is used. Importing the same file again changes
nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from heapq import merge
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.manifests import is_within_epoch, read_manifest
from ..errors import IdentityMismatch, StoreError, StoreFull, StudyMismatch, TaskBusy, UnknownStudy
from ..storage import studies as study_rows
from ..storage.branches import BRANCH, BRANCHED
from ..storage.checkpoints import add_checkpoint, metrics_until, put_blobs, put_metrics
from ..storage.commands import Command, commands
from ..storage.locks.owner import Owner
from ..storage.rows import Segment, Study, Trial
from ..storage.sql.columns import Double, Integer, Text
from ..storage.sql.database import sqlite_url
from ..storage.sql.schema import blob, checkpoint, command, event, metric, segment, study, task, trial
from ..storage.sql.writes import add_task
from ..storage.store import Store
from ..study.config import Config
from .confirmed_seeds import with_used, without_used
from .exporting import COLUMNS, Row, Transferred, check_digest, needed_policies, rows_of, without_passwords
from .fsck import check
from .locking import last_epochs, lock_if_free

DIGEST = hashlib.sha256().digest_size  # bytes at the end of the file
LONGEST_NAME = 1000  # characters
# Violations that an exported file cannot have; others may have been in the exported database.
REFUSED = ("file", "table", "json", "blob", "blob-size", "checkpoint", "orphan", "unreachable", "segment-result")


class BadArchive(StoreError, ValueError):
    """The file is not an exported study, or damaged."""


def import_study(store: Store, path: Path) -> Transferred:
    """Store the study from an exported file.

    Tasks are stored one by one and the study last, so an interrupted import can be repeated.

    Raises:
        BadArchive: the file is damaged, or not an exported study.
        StudyMismatch: the database has a study of this name, or a state of a task, with different content.
        IdentityMismatch: the database has a task with the same uid and a different identity.
        TaskBusy: a living process holds one of the tasks.
    """
    with TemporaryDirectory(prefix="rekindle-import-") as directory:
        copy = Path(directory) / "study.db"
        _copy(path, copy)
        try:
            with Store(sqlite_url(copy)) as source:
                study = _check(source)
                trials, segments = source.trials(study.name), source.segments(study.name)
                steering = source.commands(study.name)
                uids, blobs = source.database.read(_contents)
        except StoreError as error:
            raise _bad(path, str(error).replace(str(copy), path.name)) from None
        Config.from_json(study.config, study.name)
        store.database.read(lambda connection: _compare(connection, study, trials, segments, steering))
        with Store(sqlite_url(copy)) as source:
            new = checkpoints = 0
            for uid in uids:
                rows = source.database.read(partial(_read_task, uid=uid))
                checkpoints += len(rows[checkpoint])
                new += store.database.write(partial(_task, data_of=partial(_blob, source), rows=rows, path=path))
        store.database.write(lambda connection: _import_study(connection, study, trials, segments, steering))
    return Transferred(study.name, len(trials), len(uids), checkpoints, blobs, new)


def _bad(path: Path, reason: str) -> BadArchive:
    return BadArchive(
        f"{path} must be a whole file that `rekindle export` wrote, but {reason[:300]}; "
        "export the study again, or copy the file again"
    )


def _copy(path: Path, target: Path) -> None:
    """Copy the database in an exported file.

    Raises:
        BadArchive: the file cannot be read, is not a database, or does not end with the digest of its bytes.
    """
    try:
        shutil.copyfile(path, target)
        with target.open("r+b") as file:
            start = file.read(16)
            file.seek(max(file.seek(0, os.SEEK_END) - DIGEST, 0))
            end = file.tell()
            digest = file.read()
            file.truncate(end)
            file.seek(0)
            whole = hashlib.file_digest(file, "sha256").digest() == digest
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(
                f"a file is checked in a copy, but there is no room for one in {target.parent.parent}; free some space "
                "there, or set TMPDIR to a directory on another disk"
            ) from None
        raise BadArchive(f"cannot read {path}: {error.strerror or error}; check the path and its permissions") from None
    if start.startswith(b"PK\x03\x04"):
        raise BadArchive(
            f"{path} is a zip, which Rekindle exported before studies became SQLite files (at 9f8a843, its last "
            "version with zips); import it with that version, and export the study again with this one"
        )
    if start != b"SQLite format 3\0":
        raise _bad(path, "it is not a SQLite database")
    if not whole:
        raise _bad(path, "it does not have the SHA-256 at its end")


def _check(source: Store) -> Study:
    """Return the study in a copied file.

    Raises:
        StoreError: anything in the file is not as export writes it.
    """
    studies = source.studies()
    if len(studies) != 1:
        raise StoreError(f"it holds {len(studies)} studies")
    broken = next((finding for finding in check(source) if finding.kind in REFUSED), None)
    if broken is not None:
        raise StoreError(f"{broken.place}: {broken.law}, but {broken.what}")
    source.database.read(_check_values)
    return studies[0]


def _check_values(connection: Connection) -> None:
    """Raise StoreError if a value is outside the range of some database.

    Also raise it if a task belongs to no trial.
    """
    for table in (study, trial, segment, command, task, checkpoint, metric, event):
        columns = [column for column in table.columns if isinstance(column.type, Integer | Double | Text)]
        for row in connection.execute(sa.select(*columns)):
            for column, value in zip(columns, row, strict=True):
                if not (column.nullable if value is None else _is_valid(column, value)):
                    raise StoreError(f"a row of {table.name} has the {column.name} {str(value)[:80]!r}")
    uids = {*connection.scalars(sa.select(trial.c.uid))}
    policies = needed_policies(connection, connection.scalar(sa.select(study.c.config)), sorted(uids))
    if {*connection.scalars(sa.select(task.c.uid))} - uids - policies:
        raise StoreError("it has a task without a trial")


def _is_valid(column: sa.Column[Any], value: Any) -> bool:
    if isinstance(column.type, Integer):
        return 0 <= value < 2**31
    if isinstance(column.type, Double):
        return math.isfinite(value) or (column is segment.c.score and not math.isnan(value))
    is_name = column.name in ("name", "uid", "kind", "study")
    return "\0" not in value and (not is_name or 0 < len(value) <= LONGEST_NAME)  # PostgreSQL cannot store NUL


def _contents(connection: Connection) -> tuple[list[str], int]:
    """Return the uids of the tasks, and the number of blobs."""
    count = sa.select(sa.func.count()).select_from(blob)
    return sorted(connection.scalars(sa.select(task.c.uid))), connection.scalar(count) or 0


def _read_task(connection: Connection, uid: str) -> dict[sa.Table, list[Row]]:
    """Return the rows of a task by table."""
    return {table: list(rows_of(connection, table, [uid])) for table in COLUMNS}


def _blob(source: Store, digest: str) -> bytes:
    """Return a blob from the file, after checking its digest."""
    query = sa.select(blob.c.data).where(blob.c.digest == digest)
    data = source.database.read(lambda connection: connection.scalar(query))
    check_digest(f"blob {digest[:12]}", digest, data)
    assert data is not None
    return data


def _compare(
    connection: Connection, imported: Study, trials: list[Trial], segments: list[Segment], steering: list[Command]
) -> bool:
    """Return whether the study is already stored.

    Raises:
        StudyMismatch: the stored content is different.
    """
    try:
        stored = study_rows.get_study(connection, imported.name)
    except UnknownStudy:
        return False
    rows = study_rows.trials(connection, imported.name), study_rows.segments(connection, imported.name)
    stored_commands = commands(connection, imported.name)
    before = {"config": without_used(stored.config)[0], **_flat(*rows, stored_commands)}
    after = {"config": without_used(imported.config)[0], **_flat(trials, segments, steering)}
    differing = [key for key in {**before, **after} if _same(before.get(key)) != _same(after.get(key))]
    if differing:
        differences = "; ".join(_difference(key, before.get(key), after.get(key)) for key in differing[:3])
        raise StudyMismatch(
            f"an imported study must be new or equal to the stored one, but {imported.name!r} is stored with "
            f"{len(differing)} differences: {differences}; import it into another database"
        )
    return True


def _flat(trials: Iterable[Trial], segments: Iterable[Segment], steering: Iterable[Command]) -> Row:
    times = ("created", "finished")
    rows = {f"trial {row.number}": {k: v for k, v in row.columns().items() if k not in times} for row in trials}
    rows |= {f"command {command.number}": command.to_json() for command in steering}
    return {**rows, **{f"segment {row.rung} of trial {row.number}": row.columns() for row in segments}}


def _same(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _difference(key: str, before: Row | None, after: Row | None) -> str:
    if before is None or after is None:
        return f"{key} is only in the {'file' if before is None else 'database'}"
    names = [name for name in {**before, **after} if _same(before.get(name)) != _same(after.get(name))]
    return f"{key} differs in {', '.join(names)}"


def _task(
    connection: Connection, data_of: Callable[[str], bytes], rows: Mapping[sa.Table, list[Row]], path: Path
) -> int:
    """Store those rows of a task that the database lacks.

    Returns:
        Number of new checkpoints.

    Raises:
        IdentityMismatch: the stored task has a different identity.
        TaskBusy: a living process holds the task.
        StudyMismatch: the stored task has a different state.
    """
    [row] = rows[task]
    uid = row["uid"]
    fresh = add_task(connection, uid, row["identity"], row["created"]) is not None
    stored = connection.execute(sa.select(task).where(task.c.uid == uid)).one()
    if None not in (stored.identity, row["identity"]) and _same(stored.identity) != _same(row["identity"]):
        raise IdentityMismatch(
            f"a uid belongs to one task, but task {uid} of {path} has another identity than "
            "the one in the database; import the file into another database"
        )
    missing = _missing(connection, uid, rows[checkpoint], path)
    nameless = stored.identity is None and row["identity"] is not None
    if (missing or fresh or nameless) and not lock_if_free(connection, uid):
        holder = Owner.parse(stored.lease_owner or "")
        raise TaskBusy(uid, stored.lease_owner or "", holder.host, holder.pid, 0.0)
    if nameless:
        connection.execute(task.update().where(task.c.uid == uid).values(identity=row["identity"]))
    for state in missing:
        names = read_manifest(state["manifest"]).blobs()
        put_blobs(connection, names, data_of)
        add_checkpoint(connection, names, state)
    if missing:
        last_epochs(connection, uid)
    if fresh or missing:  # a budget of time counts what was trained, and later leases have larger tokens
        counted = {name: max(row[name], stored._mapping[name]) for name in ("trained", "lease_epoch")}
        connection.execute(task.update().where(task.c.uid == uid).values(**counted))
    _merge_metrics(connection, uid, rows[metric])
    _merge_events(connection, uid, rows[event])
    return len(missing)


def _merge_metrics(connection: Connection, uid: str, rows: list[Row]) -> None:
    """Add a file's metrics of a task that the database lacks.

    One of them may have been evaluated after epochs that the other only passed.
    """
    stored = dict(metrics_until(connection, uid))
    merged = [(uid, row["epoch"], {**row["data"], **stored.get(row["epoch"], {})}) for row in rows]
    put_metrics(connection, [row for row in merged if row[2].keys() != stored.get(row[1], {}).keys()])


def _merge_events(connection: Connection, uid: str, rows: list[Row]) -> None:
    """Add the events that a task lacks, in order of time."""
    columns = [event.c.id, *(event.c[name] for name in COLUMNS[event])]
    query = sa.select(*columns).where(event.c.uid == uid).order_by(event.c.id)
    stored = [dict(row._mapping) for row in connection.execute(query)]
    contents = {_content_of(row) for row in stored}
    new = [row for row in rows if _content_of(row) not in contents]
    if not new:
        return
    time = itemgetter("created")
    later = [row for row in stored if row["created"] > time(new[0])]
    connection.execute(event.delete().where(event.c.id.in_([row.pop("id") for row in later])))
    connection.execute(event.insert(), list(merge(new, later, key=time)))


def _content_of(row: Row) -> str:
    """Return the content of an event in a file.

    A branch is noted once, whenever that was.
    """
    written = 0.0 if row["kind"] in (BRANCH, BRANCHED) else row["created"]
    return _same([written, row["kind"], without_passwords(row["data"])])


def _missing(connection: Connection, uid: str, rows: list[Row], path: Path) -> list[Row]:
    """Return the checkpoints after the last one in the database.

    Raises:
        StudyMismatch: the database has a different state at the same epochs.
    """
    c = checkpoint.c
    query = sa.select(c.epochs, c.within_epoch, c.digest).where(c.uid == uid).order_by(c.id)
    stored = {(row.epochs, row.within_epoch): row.digest for row in connection.execute(query)}
    for row in rows:
        epochs, digest = row["epochs"], row["digest"]
        if not is_within_epoch(row["manifest"]) and stored.get((epochs, 0), digest) != digest:
            raise StudyMismatch(
                f"a task has one state at a time, but after {epochs} epochs task {uid} has the digest "
                f"{stored[epochs, 0][:12]} in the database and {digest[:12]} in {path}; "
                "import the file into another database"
            )
    last = max((epochs for epochs, _ in stored), default=-1)
    return [row for row in rows if row["epochs"] > last]


def _import_study(
    connection: Connection, new: Study, trials: list[Trial], segments: list[Segment], steering: list[Command]
) -> None:
    if _compare(connection, new, trials, segments, steering):
        used = without_used(new.config)[1]
        study_rows.change_config(connection, new.name, partial(with_used, used=used))
        return
    connection.execute(study.insert().values(name=new.name, config=new.config, created=new.created))
    if trials:
        connection.execute(trial.insert(), [{**row.columns(), "study": new.name} for row in trials])
    if segments:
        connection.execute(segment.insert(), [{**row.columns(), "study": new.name} for row in segments])
    if steering:
        connection.execute(command.insert(), [{**row.to_json(), "study": new.name} for row in steering])
