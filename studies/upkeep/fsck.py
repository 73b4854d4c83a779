"""Check of a database for orphaned, damaged, unreachable or contradictory rows.

    findings = check(store)
    for finding in findings:
        print(finding)
    repair(store, findings)  # changes the database

The check reads in many short transactions, and at most 16 MiB of a blob at a time. A database of many gigabytes is thus
checked in bounded memory while workers use it. A repair leaves tasks alone that a living process holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.manifests import read_manifest
from ...tasks.errors import TaskError
from ..errors import StoreError
from ..storage.sql.schema import blob, checkpoint, checkpoint_blob
from ..storage.store import Store
from . import fsck_rows
from .findings import Fault as Fault
from .fsck_repair import repair as repair

LONGEST = 16 << 20  # bytes of a blob in memory at once
PAGE = 50  # rows per transaction
BYTES = "blob"  # SQLite's storage class of bytes
T = TypeVar("T", bound=tuple[Any, ...])


def check(store: Store) -> list[Fault]:
    """Return all findings in a database."""
    findings: list[Fault] = []
    for part in (_file, *fsck_rows.CHECKS):
        try:
            findings += store.database.read(partial(_listed, part=part))
        except StoreError as error:
            findings.append(Fault("table", part.__name__.strip("_"), f"{error}"))
    try:
        of_blobs = list(_blobs(store))
        findings += of_blobs
        findings += _checkpoints(store, {finding.key[0] for finding in of_blobs if finding.kind == "blob"})
        findings += store.database.read(partial(_listed, part=_orphans))
    except StoreError as error:
        findings.append(Fault("table", "checkpoints", f"{error}"))
    return findings


def _listed(connection: Connection, part: Callable[[Connection], Iterable[Fault]]) -> list[Fault]:
    return list(part(connection))


def _file(connection: Connection) -> Iterator[Fault]:
    """Yield the findings of SQLite's own check of its file.

    PostgreSQL itself verifies the checksums of its pages.
    """
    if connection.dialect.name == "sqlite":
        for line in connection.exec_driver_sql("PRAGMA quick_check(20)").scalars():
            if line != "ok":
                yield Fault("file", "the database file", str(line))


def _in_pages(store: Store, read: Callable[..., list[T]], last: Any) -> Iterator[T]:
    """Yield rows, reading one page per transaction.

    ``last`` is a value of the first column; reading starts after it.
    """
    while page := store.database.read(partial(read, after=last)):
        yield from page
        last = page[-1][0]


def _stored_as(connection: Connection, column: sa.Column[Any]) -> sa.ColumnElement[str]:
    """Return SQL for the storage class of a column of bytes.

    Reading text or a number from such a column would abort the query.
    """
    return sa.func.typeof(column) if connection.dialect.name == "sqlite" else sa.literal(BYTES)


class _Blob(NamedTuple):
    digest: str
    size: int
    length: int
    storage_class: str  # of its data
    actual: str  # sha256 of its data


def _blobs(store: Store) -> Iterator[Fault]:
    """Yield the blobs with wrong bytes or sizes."""
    for row in _in_pages(store, _blob_rows, ""):
        defect, wrong = "blob", ""
        if row.storage_class != BYTES:
            wrong = f"SQLite has its bytes as {row.storage_class}"
        elif row.actual != row.digest and row.size in (-1, row.length):
            wrong = f"its {row.length} bytes have another"
        elif row.actual != row.digest:
            wrong = f"it has {row.length} of its {row.size} bytes"
        elif row.size != row.length:
            defect, wrong = "blob-size", f"it is given as {row.size}, and there are {row.length}"
        if wrong:
            yield Fault(defect, f"blob {row.digest[:12]}", wrong, (row.digest,))


def _blob_rows(connection: Connection, after: str) -> list[_Blob]:
    length, storage_class = sa.func.coalesce(sa.func.length(blob.c.data), 0), _stored_as(connection, blob.c.data)
    query = sa.select(blob.c.digest, blob.c.size, length, storage_class).where(blob.c.digest > after)
    rows = connection.execute(query.order_by(blob.c.digest).limit(PAGE)).all()
    return [_Blob._make((*row, _sha256(connection, row.digest) if row[3] == BYTES else "")) for row in rows]


def _sha256(connection: Connection, digest: str) -> str:
    """Return the sha256 of a blob's data, reading it in pieces."""
    hashed, start, data = hashlib.sha256(), 1, None
    while data is None or len(data) == LONGEST:
        part = sa.func.substr(blob.c.data, start, LONGEST, type_=blob.c.data.type)
        data = connection.scalar(sa.select(part).where(blob.c.digest == digest)) or b""
        hashed.update(data)
        start += len(data)
    return hashed.hexdigest()


def _checkpoints(store: Store, bad: Set[str]) -> Iterator[Fault]:
    """Yield the checkpoints that cannot be loaded."""
    for row in _in_pages(store, _heads, 0):
        if wrong := _wrong(row, bad):
            yield Fault("checkpoint", f"task {row.uid} at {row.epochs} epochs", wrong, (row.uid, row.id, wrong))


class _Head(NamedTuple):
    id: int
    uid: str
    epochs: int
    digest: str
    storage_class: str  # of the manifest
    manifest: bytes | None
    named: set[str]  # digests of its blobs, according to its rows
    stored: set[str]  # digests of those blobs that exist


def _heads(connection: Connection, after: int) -> list[_Head]:
    c, named = checkpoint.c, checkpoint_blob.c
    storage_class = _stored_as(connection, c.manifest)
    manifest = sa.case((storage_class == BYTES, c.manifest))
    query = (
        sa.select(c.id, c.uid, c.epochs, c.digest, storage_class, manifest)
        .where(c.id > after)
        .order_by(c.id)
        .limit(PAGE)
    )
    heads = {row.id: _Head._make((*row, set(), set())) for row in connection.execute(query)}
    links = sa.select(named.checkpoint, named.digest, blob.c.digest).join_from(checkpoint_blob, blob, isouter=True)
    for id, digest, stored in connection.execute(links.where(named.checkpoint.in_(heads))):
        heads[id].named.add(digest)
        heads[id].stored.update({stored} - {None})
    return list(heads.values())


def _wrong(row: _Head, bad: Set[str]) -> str:
    if row.manifest is None:
        return f"SQLite has the bytes of its manifest as {row.storage_class}"
    if hashlib.sha256(row.manifest).hexdigest() != row.digest:
        return "its manifest has another sha256"
    try:
        named = read_manifest(row.manifest).blobs()
    except TaskError as error:
        return f"its manifest cannot be read: {error}"
    if named != row.named:
        more, less = len(named - row.named), len(row.named - named)
        return f"its manifest names {more} blobs that its row does not name, and its row {less} that it does not"
    if missing := sorted(named - row.stored):
        return f"{len(missing)} of its blobs are missing, {missing[0][:12]} the first"
    damaged = sorted(named & bad)
    return f"{len(damaged)} of its blobs are damaged, {damaged[0][:12]} the first" if damaged else ""


def _orphans(connection: Connection) -> Iterator[Fault]:
    named = sa.exists().where(checkpoint_blob.c.digest == blob.c.digest)
    query = sa.select(blob.c.digest, sa.func.length(blob.c.data)).where(~named).order_by(blob.c.digest)
    for digest, size in connection.execute(query):
        yield Fault("orphan", f"blob {digest[:12]}", f"no checkpoint names its {size} bytes", (digest,))
