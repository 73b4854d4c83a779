"""Writes a study to a file: rows as JSON lines, states as blobs named by their sha256."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ..errors import StoreError
from ..redact import masked
from ..storage import trials as ledger
from ..storage.sql.schema import blob, checkpoint, event, metric, task
from ..storage.store import Store
from . import archive_rows as form
from .archive import INDEX, PARTS, Writer
from .archive_rows import Row, Transferred


def export_study(store: Store, name: str, path: Path) -> Transferred:
    """Writes a study with its tasks to a file, as of one moment; UnknownStudy if there is none of this name."""
    return store._database.read(lambda connection: _export(connection, name, path))


def _export(connection: Connection, name: str, path: Path) -> Transferred:
    row = ledger.get_study(connection, name)
    trials = [asdict(each) for each in ledger.trials(connection, name)]
    segments = [asdict(each) for each in ledger.segments(connection, name)]
    for each in segments:
        if each["objectives"] is None:
            del each["objectives"]
    for each in trials:
        each["error"] = each["error"] and masked(each["error"])
    uids = sorted({each["uid"] for each in trials})  # here, as databases sort texts each in their way
    manifests: dict[str, int] = {}
    with Writer(path) as writer:
        parts: dict[str, Iterable[Row]] = {
            "trials": trials,
            "segments": segments,
            "tasks": _tasks(connection, uids),
            "checkpoints": _checkpoints(connection, uids, manifests),
            "metrics": _of_tasks(connection, uids, metric, ("uid", "epoch", "data"), metric.c.epoch),
            "events": _events(connection, uids),
        }
        written = {part: writer.lines(f"{part}.jsonl", _lines(part, parts[part])) for part in PARTS}
        blobs = _write_states(connection, writer, manifests)
        own = {"name": row.name, "config": row.config, "created": row.created}
        _refuse_secrets(f"the configuration of study {name!r}", own)
        writer.data(INDEX, form.dump_index(own, {part: digest for part, (digest, _) in written.items()}))
    return Transferred(name, len(trials), written["tasks"][1], written["checkpoints"][1], blobs)


def _lines(part: str, rows: Iterable[Row]) -> Iterator[bytes]:
    for row in rows:
        _refuse_secrets(f"one of the {part}", row)
        yield form.line(row)


def _refuse_secrets(where: str, row: Mapping[str, Any]) -> None:
    """A password that is part of what a trial is cannot be left out, so such a study is not exported."""
    for text in _texts(row):
        if masked(text) != text:
            raise StoreError(
                f"an exported file holds no password, but {where} seems to hold one, in "
                f"{masked(text)[:80]!r}; give it to the environment in another way"
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _texts(item)


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hidden(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return masked(value) if isinstance(value, str) else value


def _of_tasks(connection: Connection, uids: Iterable[str], table: sa.Table, names: Iterable[str], order: Any) -> Any:
    columns = [table.c[name] for name in names]
    for uid in uids:
        for row in connection.execute(sa.select(*columns).where(table.c.uid == uid).order_by(order)):
            yield dict(row._mapping)


def _tasks(connection: Connection, uids: Iterable[str]) -> Iterator[Row]:
    yield from _of_tasks(connection, uids, task, ("uid", "identity", "created"), task.c.uid)


def _events(connection: Connection, uids: Iterable[str]) -> Iterator[Row]:
    for row in _of_tasks(connection, uids, event, ("uid", "created", "kind", "data"), event.c.id):
        yield row | {"data": _hidden(row["data"])}


def _checkpoints(connection: Connection, uids: Iterable[str], manifests: dict[str, int]) -> Iterator[Row]:
    names = ("id", "uid", "epochs", "digest", "created")
    for row in _of_tasks(connection, uids, checkpoint, names, checkpoint.c.id):
        manifests[row["digest"]] = row.pop("id")
        yield row


def _write_states(connection: Connection, writer: Writer, manifests: Mapping[str, int]) -> int:
    """Writes manifests and blobs; StoreError if one is not what its name says. How many blobs there are."""
    named: set[str] = set()
    for digest, id in sorted(manifests.items()):
        manifest = connection.scalar(sa.select(checkpoint.c.manifest).where(checkpoint.c.id == id))
        named |= form.checked_manifest(digest, manifest or b"")
        writer.data(f"manifests/{digest}", manifest or b"")
    for digest in sorted(named):
        data = connection.scalar(sa.select(blob.c.data).where(blob.c.digest == digest))
        form.check_digest(f"blob {digest[:12]}", digest, data)
        writer.data(f"blobs/{digest}", data or b"")
    return len(named)
