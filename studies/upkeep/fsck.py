"""Examination of a database for orphaned, damaged, unreachable or contradictory rows.

    for finding in check(store):
        print(finding)
    repair(store, findings)  # only when told

It reads in many short transactions, and blobs a few megabytes at a time, so that a database of many gigabytes is
examined in bounded memory while others work on it. Tasks held by a living process are left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ...tasks.checkpoint.manifests import read_manifest
from ...tasks.errors import TaskError
from ..errors import StoreError
from ..storage.sql.schema import CHUNK, blob, checkpoint, checkpoint_blob
from ..storage.store import Store
from . import fsck_rows, fsck_trials
from .findings import Finding as Finding
from .fsck_repair import repair as repair

BATCH = 32 << 20  # bytes of blobs that are in memory at once
LONGEST = 16 << 20  # bytes of one blob that are
BYTES = "blob"  # SQLite's name of what is stored as bytes


def check(store: Store) -> list[Finding]:
    """Return the findings of a database, in an order suited to repair."""
    findings: list[Finding] = []
    parts = [_file, *fsck_rows.CHECKS, *fsck_trials.CHECKS]
    for part in parts:
        try:
            findings += store.database.read(part)
        except StoreError as error:
            findings.append(Finding("table", part.__name__.strip("_"), f"{error}"))
    bad: set[str] = set()
    try:
        for finding in _blobs(store):
            findings.append(finding)
            bad |= {finding.key[0]} if finding.kind == "blob" else set()
        findings += _checkpoints(store, bad)
        findings += store.database.read(_orphans)
    except StoreError as error:
        findings.append(Finding("table", "checkpoints", f"{error}"))
    return findings


def _file(connection: Connection) -> list[Finding]:
    """Return SQLite's own findings in its file.

    PostgreSQL verifies checksums of its pages.
    """
    if connection.dialect.name != "sqlite":
        return []
    lines = connection.exec_driver_sql("PRAGMA quick_check(20)").scalars()
    return [Finding("file", "the database file", str(line)) for line in lines if line != "ok"]


def _blobs(store: Store) -> Iterator[Finding]:
    """Yield the blobs with wrong bytes."""
    last = ""
    while rows := store.database.read(partial(_sizes, after=last)):
        small: list[str] = []
        total = 0
        for digest, size, length, kind in rows:
            last = digest
            if kind != BYTES:
                yield Finding("blob", f"blob {digest[:12]}", f"SQLite has its bytes as {kind}", (digest,))
                continue
            if length > LONGEST:
                digest_found = store.database.read(partial(hash_long, digest=digest))
                yield from _compared(digest, digest_found, size, length)
                continue
            if total + length > BATCH:
                yield from _hash_small(store, small)
                small, total = [], 0
            small.append(digest)
            total += length
        yield from _hash_small(store, small)


def _stored_as(connection: Connection, column: sa.Column[Any]) -> sa.ColumnElement[str]:
    """Return the storage class of a column of bytes.

    Reading text or a number there would end a query.
    """
    return sa.func.typeof(column) if connection.dialect.name == "sqlite" else sa.literal(BYTES)


def _sizes(connection: Connection, after: str) -> list[tuple[str, int, int, str]]:
    length, kind = sa.func.coalesce(sa.func.length(blob.c.data), 0), _stored_as(connection, blob.c.data)
    query = sa.select(blob.c.digest, blob.c.size, length, kind).where(blob.c.digest > after)
    rows = connection.execute(query.order_by(blob.c.digest).limit(CHUNK))
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _hash_small(store: Store, digests: list[str]) -> Iterator[Finding]:
    columns = (blob.c.digest, blob.c.size, blob.c.data)
    query = sa.select(*columns).where(blob.c.digest.in_(digests)).order_by(blob.c.digest)

    def hashed(connection: Connection) -> list[tuple[str, str, int, int]]:
        rows = connection.execute(query)
        return [(name, hashlib.sha256(data or b"").hexdigest(), size, len(data or b"")) for name, size, data in rows]

    for row in store.database.read(hashed) if digests else []:
        yield from _compared(*row)


def hash_long(connection: Connection, digest: str) -> str:
    """Return the sha256 of a blob that is read in pieces."""
    hashed, start = hashlib.sha256(), 1
    while True:
        part = sa.func.substr(blob.c.data, start, LONGEST, type_=blob.c.data.type)
        data = connection.scalar(sa.select(part).where(blob.c.digest == digest))
        if not data:
            return hashed.hexdigest()
        hashed.update(data)
        start += len(data)


def _compared(digest: str, actual: str, size: int, length: int) -> Iterator[Finding]:
    if actual != digest:
        wrong = f"its {length} bytes have another" if size in (-1, length) else f"it has {length} of its {size} bytes"
        yield Finding("blob", f"blob {digest[:12]}", wrong, (digest,))
    elif size != length:
        yield Finding("blob-size", f"blob {digest[:12]}", f"it is given as {size}, and there are {length}", (digest,))


def _checkpoints(store: Store, bad: Set[str]) -> Iterator[Finding]:
    """Yield the checkpoints that cannot be loaded."""
    last = 0
    while rows := store.database.read(partial(_heads, after=last)):
        for row in rows:
            last = row.id
            if wrong := _wrong(row, bad):
                yield Finding("checkpoint", f"task {row.uid} at {row.epochs} epochs", wrong, (row.uid, row.id))


@dataclass
class _Head:
    id: int
    uid: str
    epochs: int
    digest: str
    kind: str  # what the manifest is stored as
    manifest: bytes | None
    named: set[str] = field(default_factory=set)  # digests of its blobs, as its rows name them
    stored: set[str] = field(default_factory=set)  # those of them that are there


def _heads(connection: Connection, after: int) -> list[_Head]:
    c, named = checkpoint.c, checkpoint_blob.c
    kind = _stored_as(connection, c.manifest)
    manifest = sa.case((kind == BYTES, c.manifest))
    query = sa.select(c.id, c.uid, c.epochs, c.digest, kind, manifest).where(c.id > after).order_by(c.id).limit(50)
    heads = {row.id: _Head(*row) for row in connection.execute(query)}
    links = sa.select(named.checkpoint, named.digest, blob.c.digest).join_from(checkpoint_blob, blob, isouter=True)
    for id, digest, stored in connection.execute(links.where(named.checkpoint.in_(heads))):
        heads[id].named.add(digest)
        heads[id].stored |= {stored} - {None}
    return list(heads.values())


def _wrong(row: _Head, bad: Set[str]) -> str:
    if row.manifest is None:
        return f"SQLite has the bytes of its manifest as {row.kind}"
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


def _orphans(connection: Connection) -> list[Finding]:
    named = sa.exists().where(checkpoint_blob.c.digest == blob.c.digest)
    query = sa.select(blob.c.digest, sa.func.length(blob.c.data)).where(~named).order_by(blob.c.digest)
    return [
        Finding("orphan", f"blob {digest[:12]}", f"no checkpoint names its {size} bytes", (digest,))
        for digest, size in connection.execute(query)
    ]
