"""Orion's database in SQL: ``storage={"type": "legacy", "database": {"type": "rekindlesql", "host": URL}}``.

Orion itself keeps experiments, trials and the states of its algorithms in MongoDB or in one pickled file. This class
keeps them in the tables ``rk_orion_*`` of the store's SQLite or PostgreSQL database. Orion finds the class through an
entry point, under its name in lower case.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from ..errors import StoreError, StoreLocked
from ..storage.sql import database as sql
from .document_tables import VERSION, Asked, Collections, DuplicateKey, UnknownIndex, create_tables, schema_version
from .documents import Document, DocumentError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # orion 0.2.7 imports pkg_resources, which warns that it is deprecated
    from orion.core.io.database import Database, DatabaseError, DatabaseTimeout, DuplicateKeyError

T = TypeVar("T")

_live: weakref.WeakSet[RekindleSQL] = weakref.WeakSet()
_live_lock = threading.RLock()  # held while that set changes, and while the process forks
_forking: list[RekindleSQL] = []  # databases whose gates the forking thread holds


class RekindleSQL(Database):  # type: ignore[misc]  # orion has no types
    """Orion's collections in SQLite or PostgreSQL.

    Several machines, processes and threads can share them, and a child process can use them after a fork.

    Args:
        host: URL of the database, or path of a SQLite file.
        name: not used.
        port: not used.
        username: user name for a URL without one.
        password: password for a URL without one. No message contains it, but Orion prints the URL that it was
            configured with; prefer PGPASSWORD or ~/.pgpass.
        timeout: seconds for which to retry an operation while the database is busy or unreachable.

    Raises:
        DatabaseError: an operation failed. DatabaseTimeout and DuplicateKeyError are raised where Orion expects them.
    """

    def __init__(
        self,
        host: str | None = None,
        name: str | None = None,
        port: int | None = None,
        username: str | None = None,
        password: str | None = None,
        timeout: float = 60.0,
    ):
        self._url = _url(host or self.get_defaults()["host"], username, password)
        self._timeout = float(timeout)
        self._sql: sql.Database | None = None
        self._gate = threading.RLock()  # held while a connection is in use, and while the process forks
        super().__init__(host=self._url, name=name, port=port, username=username)

    @classmethod
    def get_defaults(cls) -> dict[str, Any]:
        """Return the default arguments of ``orion db setup``."""
        return {"host": "sqlite:///studies.db"}

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}(host={self.host!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._url, "timeout": self._timeout, "name": self.name, "port": self.port}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Connections and locks cannot be pickled.
        self.__init__(state["url"], state["name"], state["port"], timeout=state["timeout"])  # type: ignore[misc]

    @property
    def is_connected(self) -> bool:
        """Return whether the database answers."""
        try:
            return self._sql is not None and bool(self._sql.read(lambda c: c.scalar(sa.text("SELECT 1")), seconds=0))
        except StoreError:
            return False

    def initiate_connection(self) -> None:
        """Open the database and create the tables, once."""
        with _live_lock:
            _live.add(self)
        with self._gate:
            if self._sql is None:
                self._sql = self._opened()

    def _opened(self) -> sql.Database:
        """Return the opened database, with tables of this version."""
        with _translated():
            opened = sql.Database(self._url, self._timeout)
            weakref.finalize(self, opened.close)
            self._url, self.host = opened.url.render_as_string(hide_password=False), opened.name
            version = opened.read(schema_version)
            if not version:
                opened.write(create_tables)
        if version not in (0, VERSION):
            opened.close()
            raise DatabaseError(
                f"this Rekindle knows version {VERSION} of the tables rk_orion_*, but those in "
                f"{self.host} are of version {version}; use the Rekindle that made them"
            )
        return opened

    def close_connection(self) -> None:
        """Close the connections; the next operation opens them again."""
        with self._gate:
            if self._sql is not None:
                self._sql.close()

    def transact(self, work: Callable[[Collections], T]) -> T:
        """Return the result of ``work``, run as one transaction.

        ``work`` may run more than once.
        """
        return self._run("write", work)

    def now(self) -> datetime:
        """Return the database's time, in UTC without a time zone."""
        return self._run("read", lambda collections: collections.now())

    def ensure_index(self, collection_name: str, keys: str | Sequence[tuple[str, Any]], unique: bool = False) -> None:
        """Add an index unless it exists; create the collection if needed."""
        pairs = [(keys, self.ASCENDING)] if isinstance(keys, str) else list(keys)
        name = "_".join(f"{field}_{-1 if order == self.DESCENDING else 1}" for field, order in pairs)
        if name not in {"_id_1", "_id_-1", *self.index_information(collection_name)}:
            fields = [field for field, _ in pairs]
            self.transact(lambda collections: collections.ensure_index(collection_name, name, fields, unique))

    def index_information(self, collection_name: str) -> dict[str, bool]:
        """Return whether each index is unique, by its name.

        The names are spelled as in MongoDB.
        """
        indexes = self._run("read", lambda collections: collections.indexes(collection_name))
        return {"_id_": True, **{name: bool(index["unique"]) for name, index in indexes.items()}}

    def drop_index(self, collection_name: str, name: str) -> None:
        """Remove an index; raise DatabaseError if it does not exist."""
        self.transact(lambda collections: collections.drop_index(collection_name, name))

    def write(self, collection_name: str, data: Any, query: Asked = None) -> int:
        """Insert documents, or update those that match; return their number.

        Without a query, ``data`` is one document or several to insert. With a query, ``data`` holds keys to set in all
        documents that match.
        """
        if query is not None:
            return self.transact(lambda collections: collections.update(collection_name, query, data))
        documents = list(data) if isinstance(data, list | tuple) else [data]
        numbers = self.transact(lambda collections: collections.insert(collection_name, documents))
        for document, number in zip(documents, numbers, strict=True):
            document["_id"] = number
        return len(documents)

    def read(self, collection_name: str, query: Asked = None, selection: Asked = None) -> list[Document]:
        """Return the documents that match, in insertion order."""
        return self._run("read", lambda collections: collections.find(collection_name, query, selection))

    def read_and_write(
        self, collection_name: str, query: Asked, data: Mapping[str, Any], selection: Asked = None
    ) -> Document | None:
        """Set keys of the first document that matches and return it.

        No two callers get the same document if the new values no longer match, as in a reservation.
        """
        return self.transact(lambda collections: collections.update_first(collection_name, query, data, selection))

    def count(self, collection_name: str, query: Asked = None) -> int:
        """Count the documents that match."""
        return self._run("read", lambda collections: collections.count(collection_name, query))

    def remove(self, collection_name: str, query: Asked) -> int:
        """Delete the documents that match; return their number."""
        return self.transact(lambda collections: collections.remove(collection_name, query))

    def _run(self, mode: str, work: Callable[[Collections], T]) -> T:
        with _translated(), self._gate:
            assert self._sql is not None
            run = self._sql.write if mode == "write" else self._sql.read
            return run(lambda connection: work(Collections(connection)))


def _url(host: str, username: str | None, password: str | None) -> str:
    if "://" not in host:
        return f"sqlite:///{host}"
    try:
        url = sa.make_url(host)
    except (sa.exc.ArgumentError, ValueError):
        return host  # sql.Database reports what is wrong with it
    url = url.set(username=url.username or username, password=url.password or password)
    return url.render_as_string(hide_password=False)


class _translated:  # noqa: N801 - used like a function: `with _translated():`
    """Translation of our errors to Orion's, which its users catch."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, error_type: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DuplicateKey):
            raise DuplicateKeyError(f"Duplicate key error: {error}") from error
        if isinstance(error, StoreLocked):
            raise DatabaseTimeout(str(error)) from error
        if isinstance(error, StoreError | DocumentError | UnknownIndex):
            raise DatabaseError(str(error)) from error


def _before_fork() -> None:
    """Close every connection, since a child process cannot share them."""
    _live_lock.acquire()
    _forking[:] = _live
    for database in _forking:
        database._gate.acquire()
        database.close_connection()


def _after_fork() -> None:
    while _forking:
        _forking.pop()._gate.release()
    _live_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
