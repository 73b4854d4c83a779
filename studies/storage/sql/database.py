"""Database behind a URL: atomic transactions, retries, clear errors.

SQLite runs in WAL mode, where readers never wait. Writers begin with BEGIN IMMEDIATE: SQLite fails at once, instead of
waiting, if a transaction reads first and another process writes before it does. PostgreSQL is used through psycopg 3.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from ...errors import BadURL, StoreError, StoreFull, StoreLocked, StoreReadOnly, StoreUnreachable
from ...redact import masked, masked_url
from .clock import file_time
from .columns import NOW_SQLITE
from .retry import Backoff, RetryPolicy
from .schema import BLOB_IN_USE

T = TypeVar("T")
_WRITES = "rekindle_writes"  # execution option that marks connections for writing
# PostgreSQL refuses connections without an error code.
_REFUSED = re.compile(
    r"authentication failed|does not exist|no pg_hba|no password supplied|not permitted to log in|invalid \w+ value"
)
_CROWDED = re.compile(r"too many (clients|connections)|connection slots are reserved")  # without a code, too
# If the server's machine is cut off, no error arrives: without these timeouts, clients would wait for hours.
_NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_PREPARE = "prepare_threshold"  # psycopg's option, which a URL could give as text only
BUSY_SECONDS = 5.0  # time that the database itself waits for a lock; then the transaction is retried here


class _Gone(Exception):
    """A SQLite file is no longer at its place."""


class Database:
    """A database that runs functions of a connection as transactions.

    Args:
        url: URL of a SQLite file or a PostgreSQL database.
        retry: seconds, or a policy, for retries while the database is busy or unreachable.
        stall: seconds after which PostgreSQL ends the transaction of a process that was paused within it.

    Attributes:
        name: the URL without its password, for messages.
        engine: connections to the database, of SQLAlchemy.
        retry: the retry policy.
        stall: see above.
    """

    def __init__(self, url: str, retry: float | RetryPolicy, stall: float = 60.0):
        self.url = _checked(url)
        self.name = masked_url(self.url.render_as_string(hide_password=True))
        self.retry, self.stall = retry if isinstance(retry, RetryPolicy) else RetryPolicy(float(retry)), stall
        self._answered = False
        self._file = sqlite_file(url)
        self._inode: tuple[int, int] | None = None  # of a SQLite file, once it is open
        self._thread = threading.local()
        self.connect()

    def connect(self) -> None:
        """Create a pool of connections.

        A forked child calls it, too, and leaves its parent's connections alone.
        """
        sqlite = self.url.get_backend_name() == "sqlite"
        arguments = {"timeout": BUSY_SECONDS} if sqlite else driver_arguments(self.url)
        try:
            self.engine = sa.create_engine(self.url, connect_args=arguments, hide_parameters=True)
        except ModuleNotFoundError as error:
            raise BadURL(f"{self.name} needs the package {error.name}: pip install 'rekindle-rl[postgres]'") from None
        if sqlite:
            sa.event.listen(self.engine, "connect", self._prepare_sqlite)
            sa.event.listen(self.engine, "begin", self._begin_sqlite)
            self._reader = self.engine
        else:
            sa.event.listen(self.engine, "begin", self._begin_postgresql)
            # all statements of a reading transaction see the same snapshot
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        self._writer = self.engine.execution_options(**{_WRITES: True})

    def read(self, work: Callable[[Connection], T], seconds: float | None = None) -> T:
        """Return the result of ``work`` on a consistent snapshot.

        Retries end after ``seconds``, or after the policy's time. ``work`` may run more than once.
        """
        return self._run(self._reader, work, seconds)

    def write(self, work: Callable[[Connection], T], seconds: float | None = None) -> T:
        """Run ``work`` as one transaction; return its result.

        Either all of its writes become visible or none. ``work`` may run more than once.
        """
        return self._run(self._writer, work, seconds)

    @contextmanager
    def sqlite(self) -> Iterator[sqlite3.Connection]:
        """Lend the driver's connection to a SQLite file, outside a transaction."""
        pooled = self.engine.raw_connection()
        try:
            connection = pooled.driver_connection
            assert isinstance(connection, sqlite3.Connection)
            yield connection
        finally:
            pooled.close()

    @property
    def busy(self) -> bool:
        """True while this thread is within a transaction.

        A garbage collection there may run any finalizer, which must then not use the database.
        """
        return getattr(self._thread, "depth", 0) > 0

    def close(self) -> None:
        """Close the idle connections."""
        self.engine.dispose()

    def _run(self, engine: Engine, work: Callable[[Connection], T], seconds: float | None) -> T:
        depth = self._thread.depth = getattr(self._thread, "depth", 0) + 1
        try:
            return self._attempt(engine, work, self.retry if seconds is None else self.retry.silent(seconds))
        finally:
            self._thread.depth = depth - 1

    def _attempt(self, engine: Engine, work: Callable[[Connection], T], retry: RetryPolicy) -> T:
        backoff = Backoff(retry)
        while True:
            try:
                with engine.begin() as connection:
                    self._answered = True
                    result = work(connection)
            except DBAPIError as error:
                writes = bool(engine.get_execution_options().get(_WRITES))
                problem, passing = _explain(error, self.name, self.url.database or "", writes)
                cause: Exception = error
            except _Gone as error:
                problem, passing, cause = StoreUnreachable(str(error)), not os.path.exists(self._file or ""), error
            except UnicodeDecodeError as error:  # in a damaged file, SQLite's message may not be UTF-8
                problem, passing, cause = StoreUnreachable(_damaged(self.name)), False, error
            else:
                backoff.succeeded()
                return result
            try:
                backoff.wait_or_raise(problem, passing, self._answered or not isinstance(problem, StoreUnreachable))
            except StoreError as given_up:
                raise given_up from cause

    def _prepare_sqlite(self, connection: Any, record: object) -> None:
        self._check_present()  # the first statement would create a file that is missing
        connection.isolation_level = None  # otherwise Python's sqlite3 would begin transactions by itself
        if not connection.execute("PRAGMA page_count").fetchone()[0]:  # a new file; else a write per connection
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # the file can give its space back, see shrinking.py
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        connection.create_function(NOW_SQLITE, 0, partial(file_time, path))
        self._inode = self._inode or _inode(self._file)

    def _begin_sqlite(self, connection: Connection) -> None:
        self._check_present()
        writes = connection.get_execution_options().get(_WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    def _check_present(self) -> None:
        """Raise _Gone if the file was removed or replaced."""
        if self._inode is not None and _inode(self._file) != self._inode:
            raise _Gone(
                f"a database stays where it is while it is used, but {self._file} was removed or replaced meanwhile; "
                "put it back, or begin again"
            )

    def _begin_postgresql(self, connection: Connection) -> None:
        """Limit this transaction alone."""
        # Limits of a session would reach other clients of a pooler, and not this one's next transaction.
        limits = {"lock_timeout": BUSY_SECONDS, "idle_in_transaction_session_timeout": self.stall}
        settings = (f"set_config('{name}', '{round(1000 * seconds)}', true)" for name, seconds in limits.items())
        connection.exec_driver_sql(f"SELECT {', '.join(settings)}")


def _inode(path: Path | None) -> tuple[int, int] | None:
    """Return the device and inode of a file, None without one."""
    try:
        status = os.stat(path or "")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def driver_arguments(url: sa.URL) -> dict[str, Any]:
    """Return arguments of psycopg's connections besides those in the URL.

    Statements are not prepared on the server: behind a pooler in transaction mode, such as pgbouncer, the next
    transaction may run on another server process, which knows none of them. `prepare_threshold=5` in the URL prepares
    those that are executed more than five times.
    """
    setting = str(url.query.get(_PREPARE, "none"))
    if setting != "none" and not setting.isdecimal():
        raise BadURL(f"{_PREPARE} in a URL must be a number of executions or none, but got {setting!r}; leave it out")
    network = {name: value for name, value in _NETWORK.items() if name not in url.query}
    return {**network, _PREPARE: None if setting == "none" else int(setting)}


def full_url(url: str) -> str:
    """Return a storage's URL, with the whole path of a SQLite file.

    An environment may change the working directory before the storage is opened. A URL that is not valid is returned as
    it is; opening it raises the error.
    """
    try:
        return _checked(url).render_as_string(hide_password=False)
    except BadURL:
        return url


def without_password(url: str) -> str:
    """Return a URL without its password."""
    try:
        bare = _checked(url)
    except BadURL:
        return masked_url(url)
    return bare.set(password=None).difference_update_query(["password"]).render_as_string(hide_password=False)


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file at any path."""
    return sa.URL.create("sqlite", database=str(path)).render_as_string()


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite URL, None for another database.

    Raises:
        BadURL: the URL is not one of a storage.
    """
    parsed = _checked(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    name = parsed.database or ""
    return Path(unquote(name.removeprefix("file:")) if name.startswith("file:") else name)


def _checked(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        backend, driver = ([*parsed.drivername.split("+"), ""])[:2]
    except (ArgumentError, ValueError, TypeError, AttributeError):
        text = masked_url(str(url))
        cure = f"did you mean sqlite:///{text}?" if "://" not in text else "check its spelling"
        raise BadURL(
            f"a storage is a URL such as sqlite:///studies.db or postgresql://user@host/name, but got {text!r}; {cure}"
        ) from None
    if "@" in (parsed.host or ""):  # what goes before it is part of the password
        raise BadURL(f"an @ in a password is written %40 in a URL, but got {masked_url(str(url))!r}")
    drivers = {"sqlite": ("", "pysqlite"), "postgresql": ("", "psycopg"), "postgres": ("",)}
    if driver not in drivers.get(backend, ()):
        near = difflib.get_close_matches(
            parsed.drivername, ["sqlite", "postgresql", "postgresql+psycopg"], n=1, cutoff=0.7
        )
        cure = f"did you mean {near[0]}://?" if near else "give one of these"
        raise BadURL(
            "Rekindle stores in SQLite (sqlite:///file) and PostgreSQL (postgresql://..., through psycopg) "
            f"only, but got {parsed.drivername}://; {cure}"
        )
    return _checked_sqlite(parsed) if backend == "sqlite" else parsed.set(drivername="postgresql+psycopg")


def _checked_sqlite(url: sa.URL) -> sa.URL:
    if url.host:
        raise BadURL(
            f"a SQLite file has no host, but got {masked_url(str(url))!r}; "
            "write three slashes: sqlite:///relative.db, or four: sqlite:////absolute.db"
        )
    if not url.database or url.database.removeprefix("file:") == ":memory:":
        raise BadURL(
            "a storage outlives its process, but got a SQLite database in memory; name a file: sqlite:///studies.db"
        )
    if url.database.startswith("file:"):
        name = url.database.removeprefix("file:")
        whole = url
        if not name.startswith("/") and url.query.get("uri"):
            whole = url.set(database=f"file:{quote(os.getcwd())}/{name}")  # a later chdir must not lead to another file
        return _immutable(whole) if url.query.get("mode") == "ro" else whole
    if url.database.startswith("~"):
        raise BadURL(f"a URL has no ~, but got {url.database}; write sqlite:///{os.path.expanduser(url.database)}")
    if url.query:
        options = ", ".join(sorted(url.query))
        raise BadURL(
            f"a SQLite file takes no options, but got {options} in {masked_url(str(url))!r}; leave it out, or, to read "
            f"alone, write sqlite:///file:{url.database}?mode=ro&uri=true"
        )
    path = Path(os.path.abspath(url.database))  # a later chdir must not lead to another file
    if path.is_dir():
        raise BadURL(
            f"a SQLite storage is a file, but {path} is a directory; did you mean sqlite:///{path}/studies.db?"
        )
    if not path.parent.is_dir():
        raise BadURL(f"the directory of a SQLite file must exist, but {path.parent} does not: mkdir -p {path.parent}")
    return url.set(database=str(path))


def _immutable(url: sa.URL) -> sa.URL:
    """Return a URL that tells SQLite of a read-only file system.

    Raises:
        BadURL: the file lacks writes that only its -wal file has.
    """
    path = Path(unquote((url.database or "").removeprefix("file:")))
    try:
        if not os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            return url
        unread = os.path.getsize(f"{path}-wal")
    except OSError:
        unread = 0
    if unread:
        raise BadURL(
            f"the last writes of {path} are in {path.name}-wal, which cannot be read on a read-only file system; copy "
            "both to another one"
        )
    return url.update_query_dict({"immutable": "1"}) if path.exists() else url


def _explain(error: DBAPIError, name: str, path: str, writes: bool) -> tuple[StoreError, bool]:
    """Return the store's error, and whether a retry may help."""
    whole = str(error.orig).strip() or type(error.orig).__name__
    refusal = next((line.strip() for line in whole.splitlines() if _REFUSED.search(line)), "")  # one of several hosts
    text = masked(f"{name}: {refusal or whole.splitlines()[0]}")
    if isinstance(error.orig, sqlite3.Error):
        return _explain_sqlite(getattr(error.orig, "sqlite_errorname", "no code"), text, path)
    state, diagnosis = getattr(error.orig, "sqlstate", None) or "", getattr(error.orig, "diag", None)
    if getattr(diagnosis, "constraint_name", "") == BLOB_IN_USE:
        return StoreLocked(f"another process kept dropping a blob between two statements: {text}; try again"), True
    if not state and not isinstance(
        error, OperationalError | InterfaceError
    ):  # psycopg itself refuses what it is given
        return StoreError(f"the database refused: {text}; check the options of the URL, and names"), False
    return _explain_postgresql(state, text, error.connection_invalidated, writes)


def _lasts(path: str) -> bool:
    """Return whether the reason that a file cannot be opened is permanent."""
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return False  # a disk that was unmounted may come back
    try:
        if os.path.exists(path):
            os.close(os.open(path, os.O_RDWR))
        else:
            tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOENT)
    return False


def _explain_sqlite(code: str, text: str, path: str) -> tuple[StoreError, bool]:
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreLocked(
            f"other processes kept the database busy: {text}; end a worker that is paused, use fewer, or use PostgreSQL"
        ), True
    if code.startswith("SQLITE_READONLY"):
        return StoreReadOnly(
            f"the database must be writable: {text}; check the rights on the file and its directory"
        ), False
    if code.startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")):
        return StoreFull(
            f"no room to write: {text}; free some space (or raise the quota), then run the same again"
        ), False
    if code.startswith("SQLITE_CANTOPEN"):
        cure = f"; to read alone, write sqlite:///file:{path}?mode=ro&uri=true" if os.path.exists(path) else ""
        return StoreUnreachable(f"cannot open {text}; check the path and the rights on it{cure}"), not _lasts(path)
    if code in ("SQLITE_NOTADB", "SQLITE_CORRUPT") or code.startswith("SQLITE_CORRUPT_"):
        return StoreUnreachable(_damaged(text)), False
    if code.startswith("SQLITE_IOERR") and code != "SQLITE_IOERR_SHORT_READ":
        return StoreUnreachable(f"the file system failed: {text} ({code}); check the disk"), True
    return StoreError(f"the database refused: {text} ({code})"), False


def _damaged(text: str) -> str:
    return f"no sound SQLite database: {text}; name another file, or restore it from a copy"


def _explain_postgresql(state: str, text: str, lost: bool, writes: bool) -> tuple[StoreError, bool]:
    if state in ("40001", "40P01", "55P03"):
        return StoreLocked(f"other processes kept the database busy: {text}; try again"), True
    if state in ("57014", "25P04"):  # on a server with less to do, the same takes less time
        return StoreLocked(
            f"the server ended what took too long: {text}; raise its statement_timeout or transaction_timeout"
        ), True
    if state == "53300" or (not state and _CROWDED.search(text)):
        return StoreLocked(
            f"the server has no connection left: {text}; use fewer processes (--workers), or raise its limit of "
            "connections, such as that of the role, to at least 2: `rekindle tune` keeps one, and so does each worker"
        ), True
    if state == "42501" and not writes:
        return StoreError(f"the database must be readable: {text}; use a role that may read, or ask its owner"), False
    if state in ("25006", "42501"):
        return StoreReadOnly(f"the database must be writable: {text}; use a role and a server that may write"), False
    if state == "53100":
        return StoreFull(f"no room to write: {text}; free some space on the server, then run the same again"), False
    if state.startswith("28") or state == "3D000" or (not state and _REFUSED.search(text)):
        return StoreUnreachable(f"the server refuses: {text}; check user, password, database name and options"), False
    if lost or not state or state.startswith(("08", "25P03", "53", "57P")):
        return StoreUnreachable(
            f"no answer from {text}; check that the server runs and that host and port are right"
        ), True
    return StoreError(f"the database refused: {text} ({state})"), False
