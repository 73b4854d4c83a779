"""Writes to the table of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection

from .schema import Now, event


def add_events(connection: Connection, events: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
    """Add (uid, kind, data)."""
    rows = [{"uid": uid, "kind": kind, "data": dict(data)} for uid, kind, data in events]
    if rows:
        connection.execute(event.insert().values(created=Now()), rows)
