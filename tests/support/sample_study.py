"""A small study with real states, for tests of database maintenance."""

from __future__ import annotations

import os
import shutil
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
import torch
from rekindle.studies.storage.locks.leases import StoreLease
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.retention import Keep
from rekindle.studies.storage.rows import Result, Segment, Trial
from rekindle.studies.storage.sql.schema import Now, metadata, task
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.tasks.checkpoint.state import pack
from rekindle.tasks.checkpoint.storage import Write

if TYPE_CHECKING:
    from conftest import Postgres

NAME = "study"
ALL = Keep(latest=None)
STATES = ("complete", "failed", "running", "pruned")
RUNGS = (2, 3)
CONFIG = Config(
    task="ppo",
    task_version=1,
    env={"id": "CartPole-v1"},
    seed=0,
    fixed={},
    epochs=[2, 3, 3],
    trials=[4],
    space={"lr": "loguniform(1e-5, 1e-2)", "clip": "uniform(0.1, 0.3)"},
).to_json()
# Scores of a trial at the ends of epochs 1, 2, 3 and 4; the second is the best.
RETURNS = (1.0, 4.0, 3.0, 2.0)


def state(number: int, epoch: int) -> dict[str, Any]:
    return {"net": {"w": torch.full((20,), number + epoch / 10)}, "steps": epoch, "frozen": torch.arange(50)}


def save(store: Store, lease: StoreLease, number: int, epoch: int) -> str:
    """Store a checkpoint of trial ``number``, and return its digest."""
    packed = pack(state(number, epoch))
    metrics = [(epoch, {"return": RETURNS[epoch - 1], "loss": float("nan")})]
    store.save([Write(lease, epoch, packed.manifest, packed.blobs, packed.digest, metrics, [("mark", {"at": epoch})])])
    return packed.digest


def uid(number: int) -> str:
    return f"uid-{number}"


def fill(store: Store, epochs: int = 3, name: str = NAME) -> None:
    """Create a study with one trial in each state, and a checkpoint after each of their epochs."""
    store.change_study(name, lambda _: CONFIG)
    store.add_rows(name, trials=[Trial(n, uid(n), {"lr": 0.001 * (n + 1)}, {"bracket": 0}) for n in range(len(STATES))])
    for number, end in enumerate(STATES):
        with store.open(uid(number), {"task": "ppo", "number": number}) as lease:
            digests = [save(store, lease, number, epoch) for epoch in range(1, epochs + 1)]
            finish(store, lease, number, end, digests, name)


def finish(store: Store, lease: StoreLease, number: int, end: str, digests: list[str], name: str = NAME) -> None:
    for rung, reached in enumerate(RUNGS):
        store.add_rows(name, segments=[Segment(number, rung, reached)])
        if rung and end == "failed":
            store.fail_trial(lease, name, number, rung, "ValueError: boom")
        elif not rung or end != "running":
            digest = digests[min(reached, len(digests)) - 1]
            store.finish_segments(name, [Result(lease, number, rung, score=RETURNS[reached - 1], digest=digest)])
    if end in ("complete", "pruned"):
        store.add_rows(name, finished=[(number, end)])


def execute(store: Store, statement: Any) -> Any:
    return store.database.write(lambda connection: connection.execute(statement).rowcount)


def rows(store: Store, query: Any) -> list[Any]:
    return store.database.read(lambda connection: list(connection.execute(query)))


def without_foreign_keys(store: Store, *statements: Any) -> None:
    """Execute statements that foreign keys would refuse."""

    def work(connection: sa.Connection) -> None:
        sqlite = connection.dialect.name == "sqlite"
        if not sqlite:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for statement in statements:
            connection.execute(statement)

    if store.url.startswith("sqlite"):
        engine = store.database.engine
        with engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.rollback()
            raw.execute("PRAGMA foreign_keys=OFF")
            try:
                raw.execute("BEGIN IMMEDIATE")
                for statement in statements:
                    text = statement.compile(engine, compile_kwargs={"literal_binds": True})
                    raw.execute(str(text))
                raw.execute("COMMIT")
            finally:
                raw.execute("PRAGMA foreign_keys=ON")
    else:
        store.database.write(work)


def dead_owner() -> str:
    """Return the owner string of a process on this machine that has ended."""
    here = Owner.current()
    return str(Owner(here.host, here.boot, os.getpid(), "1"))


def hold(store: Store, of: str, owner: str, seconds: float) -> None:
    """Record that a process holds a task."""
    values = {"lease_owner": owner, "lease_epoch": task.c.lease_epoch + 1, "lease_expires": Now() + seconds}
    execute(store, task.update().where(task.c.uid == of).values(**values))


TEMPLATES: dict[str, str] = {}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> dict[str, str]:
    """Return URLs of databases with the study; in PostgreSQL, another schema has a copy of each table."""
    if TEMPLATES:  # made for the previous module
        return TEMPLATES
    urls = {
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('template') / 'store.db'}",
        "postgresql": postgres.new_database(),
    }
    for url in urls.values():
        with Store(url, keep=ALL) as store:
            fill(store)
    with psycopg.connect(urls["postgresql"]) as connection:
        connection.execute("CREATE SCHEMA original")
        for table in metadata.sorted_tables:
            connection.execute(f"CREATE TABLE original.{table} AS TABLE {table}")
    TEMPLATES.update(urls)
    return TEMPLATES


@pytest.fixture(params=["sqlite", "postgresql"])
def filled_url(request: pytest.FixtureRequest, templates: dict[str, str], tmp_path: Path) -> str:
    """Return the URL of a database with the study, of each kind."""
    template = templates[request.param]
    if request.param == "sqlite":
        path = tmp_path / "filled.db"
        shutil.copy(template.removeprefix("sqlite:///"), path)
        return f"sqlite:///{path}"
    with psycopg.connect(template) as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(f"DELETE FROM {table}")
        for table in metadata.sorted_tables:
            connection.execute(f"INSERT INTO {table} SELECT * FROM original.{table}")
    return template


# For tests that do not depend on the kind of database.
on_sqlite = pytest.mark.parametrize("filled_url", ["sqlite"], indirect=True)


@pytest.fixture
def filled(filled_url: str) -> Iterator[Store]:
    with Store(filled_url, keep=ALL) as store:
        yield store


# For tests of malicious content.
MIB = 1 << 20
DEEP = "[" * 100_000
NESTED = "[" * 500 + "]" * 500


@contextmanager
def bounded(seconds: int = 300, memory: int = 0) -> Iterator[None]:
    """Fail if the body takes longer or, if `memory` is given (which is slow), allocates more in Python."""

    def hang(*_: object) -> None:
        raise AssertionError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    if memory:
        tracemalloc.start()
    try:
        yield
        assert not memory or tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
