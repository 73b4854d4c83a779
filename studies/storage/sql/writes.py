"""Reads and writes that several parts of the store share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from .schema import CHUNK, Now, event, task

T = TypeVar("T")


def insert(connection: Connection, table: sa.Table) -> Any:
    """Return an INSERT with on_conflict_do_nothing and on_conflict_do_update, for either database."""
    from sqlalchemy.dialects import postgresql, sqlite

    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield some of the values at a time, for one IN (...)."""
    return (values[i : i + CHUNK] for i in range(0, len(values), CHUNK))


def rows_with(
    connection: Connection, query: sa.Select[Any], column: sa.ColumnElement[Any], values: Collection[Any]
) -> list[Any]:
    """Return a query's rows whose column has one of many values.

    They are in the query's order within each chunk of values, which are sorted.
    """
    return [row for part in chunks(sorted(values)) for row in connection.execute(query.where(column.in_(part)))]


def add_task(
    connection: Connection, uid: str, identity: Mapping[str, Any] | None, created: float | None = None
) -> str | None:
    """Create a task unless it exists; return the uid if new."""
    values = {"uid": uid, "identity": identity, "created": Now() if created is None else created}
    new = insert(connection, task).values(**values, lease_epoch=0, lease_expires=0, epochs=0)
    return connection.scalar(new.on_conflict_do_nothing().returning(task.c.uid))


def add_events(connection: Connection, events: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Add (uid, kind, data)."""
    rows = [{"uid": uid, "kind": category, "data": dict(data)} for uid, category, data in events]
    if rows:
        connection.execute(event.insert().values(created=Now()), rows)
