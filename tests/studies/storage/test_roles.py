"""PostgreSQL with least privilege: a worker's role that cannot drop, and a reader's role that cannot write."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import psycopg
import pytest
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import Snapshot
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.supervisor import Supervisor, WorkerProcess
from rekindle.studies.workers.worker import Worker
from studying import bits, surrogate, tiny, undisturbed

# What docs/guide.md tells a database's owner.
WORKER = """
GRANT USAGE ON SCHEMA public TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role};
"""
READER = """
GRANT USAGE ON SCHEMA public TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};
"""


def as_role(postgres: Any, url: str, name: str, grants: str) -> str:
    """The database as a new role with these privileges sees it."""
    owner = url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(owner, autocommit=True) as connection:
        with contextlib.suppress(psycopg.errors.DuplicateObject):
            connection.execute(f"CREATE ROLE {name} LOGIN")  # type: ignore[arg-type]
        connection.execute(grants.format(role=name))  # type: ignore[arg-type]
    return url.replace("postgres@", f"{name}@")


def test_a_worker_trains_a_study_that_it_cannot_drop(postgres: Any, postgres_url: str) -> None:
    config = tiny(trials=4)
    with Store(postgres_url) as store:
        start_study(store, "s", config)
    url = as_role(postgres, postgres_url, "rk_worker", WORKER)
    with Store(url) as store:
        assert Worker(store, "s").run()
        assert bits(store) == undisturbed(config)
    with (
        psycopg.connect(url) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="owner of table"),
    ):
        connection.execute("DROP TABLE rk_metric")


def test_a_reader_looks_at_everything_and_changes_nothing(
    postgres: Any, postgres_url: str, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    with Store(postgres_url) as store:
        start_study(store, "s", tiny(trials=2))
        assert Worker(store, "s").run()
        start_study(store, "open", tiny(trials=2))
        before = bits(store)
    url = as_role(postgres, postgres_url, "rk_reader", READER)
    report = str(tmp_path / "r.html")
    for command in (
        ["status"],
        ["trials", "s"],
        ["watch", "s"],
        ["diagnose", "s"],
        ["report", "s", "-o", report],
        ["tasks"],
    ):
        assert main([*command, "--json", "--storage", url]) == 0, (command, capsys.readouterr().err)
        json.loads(capsys.readouterr().out)
    for command in (
        ["stop", "s"],
        ["worker", "--study", "open"],
        ["enqueue", "s", "--set", "gamma=0.9"],
        ["gc", "--yes"],
    ):
        main([*command, "--storage", url])
        said = " ".join(capsys.readouterr().err.split())
        assert "the database must be writable" in said, (command, said)
        assert "permission denied for table" in said
    blind = as_role(postgres, postgres_url, "rk_blind", "GRANT USAGE ON SCHEMA public TO {role};")
    assert main(["status", "--storage", blind]) == 1
    assert "the database must be readable" in capsys.readouterr().err
    with Store(postgres_url) as store:
        assert bits(store) == before
        assert store.commands("s") == []


def test_a_supervisor_shows_once_that_its_worker_waits_for_a_connection_and_needs_two(
    postgres: Any, postgres_url: str
) -> None:
    config = surrogate(4)
    with Store(postgres_url) as store:
        start_study(store, "s", config)
    url = as_role(postgres, postgres_url, "rk_alone", WORKER + "ALTER ROLE {role} CONNECTION LIMIT 1;")
    said: list[str] = []

    class Display:
        workers = 0

        def show(self, snapshot: Snapshot) -> None:
            pass

        def say(self, text: str) -> None:
            said.append(text)
            as_role(postgres, postgres_url, "rk_alone", "ALTER ROLE {role} CONNECTION LIMIT 2;")

    with Store(url) as store:  # has the role's only connection
        Supervisor(store, "s", 1, lambda: WorkerProcess(url, "s", 1), Display()).run()
        assert bits(store) == undisturbed(config)
    assert len(said) == 1
    assert "1 of 1 workers: waiting for the database" in said[0]
    for part in ("too many connections for role", "--workers", "raise its limit", "to at least 2"):
        assert part in said[0]
