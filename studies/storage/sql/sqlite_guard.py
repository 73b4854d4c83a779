"""Guard against SQLite files with views, triggers or expressions.

A file may come from anybody, and SQLite lets one hold views, triggers and expressions under the names of our tables.
They cannot run a program, but a view can be endless, and an expression can fill the memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import Connection

from ...errors import SchemaMismatch
from .schema import metadata

_OBJECTS = sa.text(
    "SELECT type, name, coalesce(sql, '') AS sql, rootpage FROM sqlite_master "
    "WHERE lower(tbl_name) IN :tables OR lower(name) IN :tables"
).bindparams(sa.bindparam("tables", expanding=True))
_PLAIN = re.compile(r"'?-?\d+'?|NULL", re.IGNORECASE)  # the defaults that there are


def refuse_views_and_triggers(connection: Connection, database: str) -> None:
    """Raise SchemaMismatch unless our tables and their indexes are plain."""
    if connection.dialect.name != "sqlite":
        return
    for row in connection.execute(_OBJECTS, {"tables": sorted(metadata.tables)}).all():
        for violation in _violations(connection, row.type, row.name, row.sql, row.rootpage):
            raise SchemaMismatch(
                f"the tables of {database} must be plain tables, but {str(row.name)[:60]!r} {violation}: it was not "
                "made by Rekindle; use another file, or restore this one from a copy"
            )


def _violations(connection: Connection, form: str, name: str, sql: str, rootpage: int | None) -> Iterator[str]:
    if form not in ("table", "index") or not rootpage:
        yield f"is a {form if form in ('view', 'trigger') else 'virtual table'}"
    elif form == "index":
        if re.search(r"\bWHERE\b", sql, re.IGNORECASE):
            yield "is an index of some rows"
        columns = connection.execute(sa.text("SELECT cid FROM pragma_index_xinfo(:name)"), {"name": name})
        if any(column.cid < -1 for column in columns):
            yield "is an index of an expression"
    else:
        if re.search(r"\bCHECK\b", sql, re.IGNORECASE):
            yield "checks its rows with an expression"
        query = sa.text("SELECT hidden, dflt_value FROM pragma_table_xinfo(:name)")
        for column in connection.execute(query, {"name": name}):
            if column.hidden:
                yield "has a column that is computed"
            if column.dflt_value is not None and not _PLAIN.fullmatch(str(column.dflt_value)):
                yield "has a default that is computed"
