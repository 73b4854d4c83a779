"""Return of free space to the file system.

SQLite keeps free pages for later rows. A database created by this version gives them back a few megabytes at a time,
in transactions between those of workers. A database created by an earlier version is rewritten once; this temporarily
takes up to twice its size and blocks writers. PostgreSQL reuses its space automatically (autovacuum).
"""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from ..errors import StoreError
from ..storage.store import Store

PAGES = 1000  # given back in one transaction
INCREMENTAL = 2  # value of PRAGMA auto_vacuum for a file that can give back pages incrementally


@dataclass(frozen=True)
class Shrunk:
    """Sizes of the database's files before and after.

    Attributes:
        before: bytes before.
        after: bytes after.
        how: method, in words.
    """

    before: int
    after: int
    how: str


def shrink(store: Store) -> Shrunk | None:
    """Give back a SQLite file's free pages; return None for PostgreSQL.

    If the database is busy or the disk is full, the work ends early and can be repeated.

    Raises:
        StoreError: the file is damaged.
    """
    database = store.database
    if database.url.get_backend_name() != "sqlite":
        return None
    with database.sqlite() as connection:
        path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
        before = _size(path)
        try:
            how = _give_back(connection, path)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError as error:
            how = f"the database was busy, or the disk full ({error}); rerun the command to continue"
        except sqlite3.Error as error:
            raise StoreError(f"{store.url} cannot be shrunk: {error}; `rekindle fsck` says what is wrong") from None
        return Shrunk(before, _size(path), how)


def _give_back(connection: sqlite3.Connection, path: Path) -> str:
    free = _pragma(connection, "freelist_count")
    if _pragma(connection, "auto_vacuum") != INCREMENTAL:
        room, size = shutil.disk_usage(path.parent).free, path.stat().st_size
        if free and room < 2 * size:
            return f"rewriting it would need {2 * size:,} bytes of disk for a while, but only {room:,} are free"
        if free:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("VACUUM")
        return "rewritten; from now on space is given back without rewriting" if free else "nothing in it is free"
    while _pragma(connection, "freelist_count"):
        connection.execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()
    return f"{free:,} free pages given back" if free else "nothing in it is free"


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _size(path: Path) -> int:
    files = [path, path.with_name(path.name + "-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
