"""Database errors: law, value and cure in words, and never a password."""

from __future__ import annotations

import os
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.errors import (
    BadURL,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnreachable,
    UnknownStudy,
)
from rekindle.studies.storage.sql.database import Database, full_url, sqlite_file
from rekindle.studies.storage.sql.retry import RetryPolicy
from rekindle.studies.storage.store import Store
from rekindle.tasks.checkpoint.storage import Write

SECRET = "tr0ub4dor"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("studies.db", r"such as sqlite:///studies.db .* got 'studies.db'; did you mean sqlite:///studies.db\?"),
        ("", "a storage is a URL such as"),
        ("sqlite3:///studies.db", r"got sqlite3://; did you mean sqlite://\?"),
        ("mysql://user@host/name", r"SQLite .* and PostgreSQL .* only, but got mysql://; give one of these$"),
        ("mysql+pymysql://user@host/name", r"only, but got mysql\+pymysql://; give one of these$"),
        ("mssql://user@host/name", "only, but got mssql://; give one of these$"),
        (
            "postgresql+psycopg2://user@host/name",
            r"but got postgresql\+psycopg2://; did you mean postgresql\+psycopg://",
        ),
        ("sqlite://", "outlives its process, but got a SQLite database in memory; name a file"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite://studies.db", "three slashes: sqlite:///relative.db"),
        ("sqlite:////nowhere/at/all/studies.db", "must exist, but /nowhere/at/all does not: mkdir -p /nowhere/at/all"),
        ("sqlite:////tmp", r"a file, but /tmp is a directory; did you mean sqlite:////tmp/studies.db\?"),
        ("postgresql://user@host:port/name", "a storage is a URL such as"),
        ("sqlite:///~/studies.db", "has no ~, but got ~/studies.db; write sqlite:////.*/studies.db$"),
    ],
)
def test_a_wrong_url_is_refused_with_the_cure(url: str, message: str) -> None:
    with pytest.raises(BadURL, match=message) as error:
        Store(url)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            f"postgresql://me:{SECRET}@127.0.0.1:9/name",
            r"no answer from postgresql\+psycopg://me:\*\*\*@127.0.0.1:9/name",
        ),
        (f"postgresql://127.0.0.1:9/name?user=me&password={SECRET}", "no answer from .*; check that the server runs"),
        (f"postgres//me:{SECRET}@host/name", "a storage is a URL"),
        (f"postgresql://me:{SECRET}@host:port/name", "a storage is a URL"),
        (f"mysql://me:{SECRET}@host/name", "SQLite or PostgreSQL|SQLite .* (or|and) PostgreSQL"),
    ],
)
def test_a_password_is_never_shown(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message) as error:
        Store(url)
    assert SECRET not in "".join(traceback.format_exception(error.value))


def test_a_password_is_not_in_the_name_of_a_store(postgres_url: str) -> None:
    with Store(postgres_url.replace("postgres@", f"postgres:{SECRET}@")) as store:  # the test server trusts everybody
        assert SECRET not in repr(store) + store.url
        assert "***" in store.url


@pytest.mark.parametrize(
    ("query", "name", "error", "message"),
    [
        ("nonsense=1", "s", StoreError, 'invalid connection option "nonsense"; check the options of the URL'),
        ("sslmode=nonsense", "s", StoreUnreachable, "the server refuses: .*invalid sslmode value"),
        ("", "a\0b", UnknownStudy, r"there is no study 'a\\x00b'"),  # as in SQLite
    ],
)
def test_permanent_errors_of_postgresql_are_not_waited_for(
    query: str, name: str, error: type[StoreError], message: str, postgres_url: str
) -> None:
    asked: list[str] = []
    policy = RetryPolicy(600, first=True, say=asked.append, stop=lambda: bool(asked))
    with pytest.raises(error, match=message), Store(f"{postgres_url}&{query}", retry=policy) as store:
        store.study(name)
    assert asked == []


def test_a_wrong_password_is_not_waited_for_whichever_host_refuses(own_postgres: Any) -> None:
    """Of several addresses the server refuses the last one, so that the first line of the error says nothing."""
    hba = own_postgres.directory / "data" / "pg_hba.conf"
    hba.write_text("local all guest scram-sha-256\n" + hba.read_text())
    own_postgres.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
    own_postgres.execute("SELECT pg_reload_conf()")
    url = f"postgresql://guest:wrong@/postgres?host=/nowhere,{hba.parent}"
    with pytest.raises(StoreUnreachable, match=r"the server refuses: .*authentication failed.*; check user, password"):
        Store(url, retry=RetryPolicy(600, first=True))


def test_a_directory_that_cannot_be_written_is_not_waited_for() -> None:
    """/proc lets nobody make a file, not even root."""
    with pytest.raises(StoreUnreachable, match=r"cannot open sqlite:////proc/studies.db.*check the path and the"):
        Store("sqlite:////proc/studies.db", retry=RetryPolicy(600, first=True))


def test_options_of_a_sqlite_url_are_refused_with_the_form_that_has_them(sqlite_url: str) -> None:
    with pytest.raises(BadURL, match=r"a SQLite file takes no options, but got mode .*mode=ro&uri=true"):
        Store(f"{sqlite_url}?mode=ro")
    assert not os.path.exists(sqlite_url.removeprefix("sqlite:///"))


def test_a_database_that_the_server_does_not_have_is_said_so(postgres_url: str) -> None:
    with pytest.raises(StoreUnreachable, match=r'the server refuses: .*"nothing" does not exist; check user, password'):
        Store(postgres_url.replace("test_", "nothing?x=").partition("?x=")[0] + "?" + postgres_url.partition("?")[2])


def test_a_relative_file_stays_the_same_file_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    with Store("sqlite:///studies.db") as store:
        monkeypatch.chdir("sub")
        store.database.close()
        store.open("a", {})
    assert [path.name for path in tmp_path.rglob("*.db")] == ["studies.db"]


def test_a_sqlite_uri_of_a_relative_file_stays_the_same_file_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "50% of #1?"
    (folder / "sub").mkdir(parents=True)
    monkeypatch.chdir(folder)
    with Store("sqlite:///file:studies.db?mode=rwc&uri=true") as store:
        monkeypatch.chdir("sub")
        store.open("a", {})
        again = full_url(store.database.url.render_as_string())
    assert [path.name for path in tmp_path.rglob("*.db")] == ["studies.db"]
    assert sqlite_file(again) == folder / "studies.db"
    with Store(again) as store:
        assert len(store.tasks()) == 1
    with pytest.raises(BadURL, match="a SQLite database in memory"):
        Store("sqlite:///file::memory:?uri=true")


def test_a_read_only_database_is_read_and_its_writes_are_refused(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        store.open("a", {"seed": 1})
    if url.startswith("sqlite"):
        url = f"sqlite:///file:{tmp_path / 'store.db'}?mode=ro&uri=true"
    else:
        url += "&options=-cdefault_transaction_read_only%3Don"
    with Store(url) as store:
        assert store.tasks()[0].identity == {"seed": 1}
        with pytest.raises(StoreReadOnly, match=r"must be writable: .*read-?only"):
            store.open("a", {"seed": 1})


def test_a_full_disk_loses_nothing_and_the_same_write_works_later(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        pages = store.database.read(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar_one())

        def limit(connection: Any, record: object) -> None:
            connection.execute(f"PRAGMA max_page_count = {pages + 8}")

        sa.event.listen(store.database.engine, "connect", limit)
        store.database.close()
        lease = store.open("a", {})
        store.save([Write(lease, 1, b"{}")])
        big = Write(lease, 2, b"{}", {"0" * 64: bytes(1_000_000)}, metrics=[(2, {"return": 1.0})])
        with pytest.raises(StoreFull, match=r"no room to write: .*full; free some space .* then run the same again"):
            store.save([big])
        assert (store.tasks()[0].epochs, store.metrics("a")) == (1, [])
        sa.event.remove(store.database.engine, "connect", limit)
        store.database.close()
        store.save([big])
        assert store.tasks()[0].epochs == 2


def test_a_limit_on_the_size_of_files_is_a_full_disk(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        lease = store.open("a", {})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
            with pytest.raises(StoreFull, match="no room to write"):
                store.save([Write(lease, 1, b"{}", {"0" * 64: bytes(1_000_000)})])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)
        assert lease.load() is None
        store.save([Write(lease, 1, b"{}")])


@pytest.mark.parametrize("content", [b"this is no database, but long enough to be looked at" * 100, os.urandom(5000)])
def test_a_file_of_another_kind_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(content)
    with pytest.raises(StoreUnreachable, match=r"no sound SQLite database: .*notes.txt.* name another file"):
        Store(f"sqlite:///{tmp_path / 'notes.txt'}")
    assert (tmp_path / "notes.txt").read_bytes() == content


BLOCK = """
import sys
from rekindle.studies.storage.sql.retry import RetryPolicy
from rekindle.studies.storage.store import Store
def block(connection):
    print("blocked", flush=True)
    sys.stdin.readline()
Store(sys.argv[1]).database.write(block)
"""


def test_a_locked_database_is_waited_for_and_not_for_ever(
    sqlite_url: str, child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.studies.storage.sql.database.BUSY_SECONDS", 0.05)
    with Store(sqlite_url, retry=0.2) as store:
        blocker = child(BLOCK, sqlite_url)
        assert blocker.hear() == "blocked"
        assert store.tasks() == []  # readers never wait
        with pytest.raises(StoreLocked, match=r"other processes kept the database busy: .*locked"):
            store.open("a", {})
        blocker.say()
        store.database.retry = RetryPolicy(60)
        store.open("a", {})


def test_a_transaction_is_whole(url: str) -> None:
    def stop(connection: sa.Connection) -> None:
        connection.exec_driver_sql("INSERT INTO t VALUES (1)")
        raise KeyError

    database = Database(url, 1.0)
    database.write(lambda c: c.exec_driver_sql("CREATE TABLE t (x INTEGER)"))
    with pytest.raises(KeyError):
        database.write(stop)
    assert database.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM t").scalar_one()) == 0
    database.close()


def test_a_reader_sees_one_moment(url: str) -> None:
    database = Database(url, 1.0)
    database.write(lambda c: c.exec_driver_sql("CREATE TABLE t (x INTEGER)"))

    def look(connection: sa.Connection) -> list[int]:
        def look_once() -> int:
            return int(connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one())

        before = look_once()
        database.write(lambda c: c.exec_driver_sql("INSERT INTO t VALUES (1)"))
        return [before, look_once()]

    assert database.read(look) == [0, 0]
    database.close()


@pytest.mark.parametrize("limit", ["statement_timeout", "transaction_timeout"])
def test_a_time_limit_of_the_server_is_retried_and_named(limit: str, postgres_url: str) -> None:
    attempts: list[str] = []

    def work(connection: sa.Connection) -> int:
        attempts.append(limit)
        if len(attempts) == 1:
            connection.exec_driver_sql("SELECT pg_sleep(60)")
        return int(connection.exec_driver_sql("SELECT 7").scalar_one())

    database = Database(f"{postgres_url}&options=-c%20{limit}%3D500ms", 60.0)
    assert database.write(work) == 7
    assert len(attempts) > 1
    with pytest.raises(StoreLocked, match=rf"the server ended what took too long: .*; raise its .*{limit}"):
        database.read(lambda c: c.exec_driver_sql("SELECT pg_sleep(60)"), seconds=0.0)
    database.close()


def test_a_server_without_a_free_connection_is_waited_for_and_named(postgres: Any, postgres_url: str) -> None:
    name = postgres_url.partition("@/")[2].partition("?")[0]
    role, url = f"guest_of_{name}", postgres_url.replace("postgres@", f"guest_of_{name}@")
    postgres.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    with pytest.raises(StoreLocked, match=r"no connection left: .*too many connections for role.*; use fewer process"):
        Database(url, 0.0).read(lambda c: c.exec_driver_sql("SELECT 7"))

    def make_room(text: str) -> None:
        postgres.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1")

    database = Database(url, RetryPolicy(60, say=make_room))
    assert database.read(lambda c: c.exec_driver_sql("SELECT 7").scalar_one()) == 7
    database.close()


def test_a_statement_that_is_wrong_is_not_tried_again(url: str) -> None:
    database = Database(url, 60.0)
    with pytest.raises(StoreError, match=r"the database refused: .*nowhere"):
        database.read(lambda c: c.exec_driver_sql("SELECT * FROM nowhere"))
    database.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_or_replaced_is_not_written_any_more(sqlite_url: str, replaced: bool) -> None:
    path = sqlite_file(sqlite_url)
    assert path is not None
    database = Database(sqlite_url, 0.0)
    database.write(lambda c: c.exec_driver_sql("CREATE TABLE t (x)"))
    kept = path.rename(path.with_name("kept.db"))
    if replaced:
        path.touch()
    for work in (database.read, database.write):
        with pytest.raises(StoreUnreachable, match=r"store.db was removed or replaced meanwhile; put it back"):
            work(lambda c: c.exec_driver_sql("SELECT 7"))
    assert path.exists() == replaced
    kept.rename(path)
    assert database.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM t").scalar_one()) == 0
    database.close()


def test_a_file_on_a_read_only_file_system_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own files beside it, which could not be made there, are not made here either."""
    database = Database(f"sqlite:///{tmp_path}/a.db", 0.0)
    database.write(lambda c: c.exec_driver_sql("CREATE TABLE t (x)"))
    database.close()
    system = os.statvfs(tmp_path)
    read_only = os.statvfs_result((*system[:8], system.f_flag | os.ST_RDONLY, *system[9:]))
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    url = f"sqlite:///file:{tmp_path}/a.db?mode=ro&uri=true"
    database = Database(url, 0.0)

    def look(connection: sa.Connection) -> list[str]:
        assert connection.exec_driver_sql("SELECT count(*) FROM t").scalar_one() == 0
        return os.listdir(tmp_path)

    assert database.read(look) == ["a.db"]
    database.close()
    (tmp_path / "a.db-wal").write_bytes(b"0" * 100)
    with pytest.raises(BadURL, match=r"the last writes of .*a.db are in a.db-wal, which cannot be read on a read-only"):
        Database(url, 0.0)
