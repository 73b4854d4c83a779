"""PostgreSQL behind a pooler in transaction mode: a client's transactions run on different server processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pooler
import pytest
import sqlalchemy as sa
from rekindle.studies.engine.optuna_mirror import mirror
from rekindle.studies.engine.runner import start_study
from rekindle.studies.errors import BadURL, StoreError
from rekindle.studies.storage.sql.database import Database
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.workers.worker import Worker
from studying import bits, surrogate, undisturbed


@pytest.fixture
def pooled_url(postgres: Any, postgres_url: str, tmp_path: Path) -> Iterator[str]:
    socket, port = postgres.directory / "data" / ".s.PGSQL.5432", tmp_path / "port"
    process = subprocess.Popen([sys.executable, str(pooler.__file__), str(socket), str(port), "2"])
    try:
        deadline = time.monotonic() + 60
        while not (port.exists() and port.read_text()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        name = postgres_url.partition("@/")[2].partition("?")[0]
        yield f"postgresql://postgres@127.0.0.1:{port.read_text()}/{name}"
    finally:
        process.kill()
        process.wait()


def processes(url: str, transactions: int) -> list[int]:
    """Return the server's process of each of some transactions."""
    database = Database(url, 0.0)
    try:
        return [database.read(lambda c: c.scalar(sa.text("SELECT pg_backend_pid()"))) for _ in range(transactions)]
    finally:
        database.close()


@pytest.mark.slow
def test_a_study_behind_a_pooler_has_the_same_bits(pooled_url: str) -> None:
    assert len(set(processes(pooled_url, 4))) == 2
    config = surrogate()
    with Store(pooled_url) as store, Store(pooled_url) as other:
        start_study(store, "s", config)
        assert Worker(store, "s").run()
        assert mirror(store, "s", pytest.fail) == 8
        assert bits(store) == undisturbed(config)
        assert not check(store)
        assert other.database.read(lambda c: c.scalar(sa.text("SELECT count(*) FROM trials"))) == 8


def test_limits_of_a_transaction_stay_in_it(pooled_url: str) -> None:
    database = Database(pooled_url, 0.0, stall=40.0)
    names = ("lock_timeout", "idle_in_transaction_session_timeout")
    try:
        for work in (database.read, database.write) * 3:  # on both of the server's processes
            assert [work(lambda c, name=name: c.scalar(sa.text(f"SHOW {name}"))) for name in names] == ["5s", "40s"]
        with closing(database.engine.raw_connection()) as other:  # another client of the pooler
            assert [other.cursor().execute(f"SHOW {name}").fetchone()[0] for name in names] == ["0", "0"]
    finally:
        database.close()


def test_statements_are_prepared_only_on_request(pooled_url: str) -> None:
    with pytest.raises(StoreError, match=r"prepared statement .* exist"):
        processes(f"{pooled_url}?prepare_threshold=0", 20)
    assert len(processes(f"{pooled_url}?prepare_threshold=none", 20)) == 20
    with pytest.raises(BadURL, match="prepare_threshold in a URL must be a number of executions or none, but got '-1'"):
        processes(f"{pooled_url}?prepare_threshold=-1", 1)
