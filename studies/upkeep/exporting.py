"""Export of a study to a SQLite file.

The database contains only this study; the SHA-256 of its bytes follows at the end of the file:

    export_study(store, "cartpole", Path("cartpole.rekindle"))

The rows are always written in the same order, so equal content gives equal bytes, whatever database it comes from. The
file contains no leases, no passwords and no code.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.manifests import is_within_epoch, read_manifest
from ...tasks.checkpoint.storage import POLICY_PREFIX, policy_uid
from ..errors import DamagedCheckpoint, StoreError, StoreFull
from ..redact import masked
from ..storage import studies as study_rows
from ..storage.branches import BRANCHED
from ..storage.commands import commands
from ..storage.sql.database import sqlite_url
from ..storage.sql.schema import blob, checkpoint, checkpoint_blob, command, event, metric, segment, study, task, trial
from ..storage.store import Store
from .confirmed_seeds import confirmed_study, used_seeds, with_used

# Columns of a task's rows that a file contains. A checkpoint's number and blobs follow from them.
COLUMNS = {
    task: ("uid", "identity", "lease_epoch", "epochs", "created", "trained"),
    checkpoint: ("uid", "epochs", "digest", "manifest", "lease_epoch", "created"),
    metric: ("uid", "epoch", "data"),
    event: ("uid", "created", "kind", "data"),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Transferred:
    """Numbers of rows in a file.

    Attributes:
        study: name of the study.
        trials: number of trials.
        tasks: number of tasks.
        checkpoints: number of checkpoints.
        blobs: number of blobs.
        new: number of checkpoints that were not in the database before the import.
    """

    study: str
    trials: int
    tasks: int
    checkpoints: int
    blobs: int
    new: int = 0


def export_study(store: Store, name: str, path: Path) -> Transferred:
    """Write a consistent snapshot of a study and its tasks.

    Raises:
        UnknownStudy: the study does not exist.
        DamagedCheckpoint: a checkpoint of the study is damaged.
        StoreError: the study contains a password, or the file cannot be written.
    """
    try:
        with TemporaryDirectory(prefix=f".{path.name[:20]}.", suffix=".part", dir=path.parent) as part:
            done = _write(store, name, Path(part) / "built.db", Path(part) / "whole.db")
            os.replace(Path(part) / "whole.db", path)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error), error.errno in (errno.ENOSPC, errno.EDQUOT)) from None
    except sqlite3.Error as error:  # of VACUUM, which the store does not run
        raise _unwritable(path, str(error), getattr(error, "sqlite_errorname", "") == "SQLITE_FULL") from None
    return done


def _write(store: Store, name: str, built: Path, whole: Path) -> Transferred:
    """Write the database and its digest to `whole`, by way of `built`."""
    with Store(sqlite_url(built)) as copy:
        done = store.database.read(lambda source: copy.database.write(lambda target: _copy(source, target, name)))
        with copy.database.sqlite() as connection:
            connection.execute("VACUUM INTO ?", (str(whole),))
    with whole.open("r+b") as file:
        file.write(hashlib.file_digest(file, "sha256").digest())
    return done


def _unwritable(path: Path, reason: str, is_full: bool) -> StoreError:
    """Return the error for a file that cannot be written."""
    if is_full:
        cure = f"free some space in {path.parent.absolute()}, about three times the size of the study, or name a file"
        return StoreFull(f"no room to write {path}: {reason}; {cure} on another disk")
    return StoreError(f"cannot write {path}: {reason}; name a file in a directory that exists and is writable")


def _copy(source: Connection, target: Connection, name: str) -> Transferred:
    stored = study_rows.get_study(source, name)
    trials = [row.columns() for row in study_rows.trials(source, name)]
    for row in trials:
        row["error"] = row["error"] and masked(row["error"])
    segments = [row.columns() for row in study_rows.segments(source, name)]
    confirmations = [row for row in study_rows.studies(source) if confirmed_study(row.config) == name]
    config = with_used(stored.config, used_seeds(confirmations))  # they stay behind
    _insert(target, study, [{"name": name, "config": config, "created": stored.created}])
    _insert(target, trial, [{"study": name, **row} for row in trials])
    _insert(target, segment, [{"study": name, **row} for row in segments])
    _insert(target, command, [{"study": name, **row.to_json()} for row in commands(source, name)])
    uids = sorted({row["uid"] for row in trials})  # sorted in Python, since databases collate text differently
    uids += sorted(needed_policies(source, stored.config, uids))
    tasks = _insert(target, task, ({**row, "lease_expires": 0.0} for row in rows_of(source, task, uids)))
    checkpoints, blobs = _copy_states(source, target, uids)
    for uid in uids:
        _insert(target, metric, rows_of(source, metric, [uid]))
        events = (row for row in rows_of(source, event, [uid]) if not _is_of_others(row, uids))
        _insert(target, event, ({**row, "data": without_passwords(row["data"])} for row in events))
    return Transferred(name, len(trials), tasks, checkpoints, blobs)


def needed_policies(source: Connection, config: Any, uids: Iterable[str]) -> set[str]:
    """Return the stored policies that play or begin in a study."""
    identities = (row["identity"] for row in rows_of(source, task, uids))
    named = {text for value in (config, *identities) for text in _texts(value) if text.startswith(POLICY_PREFIX)}
    options = config.get("options") if isinstance(config, Mapping) else None
    start = options.get("warm_start") if isinstance(options, Mapping) else None
    return named | ({policy_uid(start)} if isinstance(start, str) else set())


def _is_of_others(row: Row, uids: Collection[str]) -> bool:
    """Return whether a policy's event concerns a task outside the study."""
    return row["uid"].startswith(POLICY_PREFIX) and row["kind"] == BRANCHED and row["data"].get("to") not in uids


def rows_of(source: Connection, table: sa.Table, uids: Iterable[str]) -> Iterator[Row]:
    """Yield a table's rows of these tasks, with a file's columns.

    The rows are in order of the table's keys.
    """
    for uid in uids:
        query = sa.select(*(table.c[name] for name in COLUMNS[table])).where(table.c.uid == uid)
        for row in source.execute(query.order_by(*table.primary_key)):
            yield dict(row._mapping)


def _insert(target: Connection, table: sa.Table, rows: Iterable[Row]) -> int:
    """Insert rows in order; return their number.

    Raises:
        StoreError: a row contains a password.
    """
    values = list(rows)
    for row in values:
        for text in _texts(row):
            if masked(text) != text:  # part of the study's content, which cannot be left out
                raise StoreError(
                    f"an exported file holds no password, but a row of {table.name} seems to hold one, in "
                    f"{masked(text)[:80]!r}; give it to the environment in another way"
                )
    if values:
        target.execute(table.insert(), values)
    return len(values)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _texts(item)


def without_passwords(value: Any) -> Any:
    """Return a value with the passwords in its texts masked."""
    if isinstance(value, dict):
        return {name: without_passwords(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_passwords(item) for item in value]
    return masked(value) if isinstance(value, str) else value


def _copy_states(source: Connection, target: Connection, uids: Iterable[str]) -> tuple[int, int]:
    """Check and copy checkpoints and their blobs; return both numbers."""
    copied: set[str] = set()
    count = 0
    for row in rows_of(source, checkpoint, uids):
        check_digest(f"a manifest of task {row['uid']}", row["digest"], row["manifest"])
        named = sorted(read_manifest(row["manifest"]).blobs())
        for digest in named:
            if digest not in copied:
                data = source.scalar(sa.select(blob.c.data).where(blob.c.digest == digest))
                check_digest(f"blob {digest[:12]}", digest, data)
                _insert(target, blob, [{"digest": digest, "size": len(data or b""), "data": data}])
                copied.add(digest)
        count += 1
        within = int(is_within_epoch(row["manifest"]))
        _insert(target, checkpoint, [{"id": count, **row, "within_epoch": within}])
        _insert(target, checkpoint_blob, [{"checkpoint": count, "digest": digest} for digest in named])
    return count, len(copied)


def check_digest(name: str, digest: str, data: bytes | None) -> None:
    """Raise DamagedCheckpoint unless the data has this SHA-256."""
    if data is None or hashlib.sha256(data).hexdigest() != digest:
        raise DamagedCheckpoint(
            f"an exported study must be whole, but {name} is {'missing' if data is None else 'damaged'}; "
            "`rekindle fsck --repair` takes the task back to a sound state"
        )
