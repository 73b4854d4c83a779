"""Waiting for a full, lost or missing database: how long, who is told, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.errors import StoreFull, StoreLocked, StoreUnreachable
from rekindle.studies.storage.sql import retry as module
from rekindle.studies.storage.sql.retry import Backoff, RetryPolicy
from rekindle.studies.storage.store import Store
from rekindle.tasks.checkpoint.storage import Write


@pytest.fixture(autouse=True)
def _says_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAY_AFTER", 0.0)


def full(store: Store, pages: int = 8) -> Callable[[], None]:
    """Leaves a SQLite store room for a few more pages; what is returned lifts that."""
    used = store.database.read(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar_one())

    def limit(connection: Any, record: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {used + pages}")

    def lift() -> None:
        sa.event.remove(store.database.engine, "connect", limit)
        store.database.close()

    sa.event.listen(store.database.engine, "connect", limit)
    store.database.close()
    return lift


def wait_for_ever(wait: Backoff) -> None:
    while True:
        wait.wait_or_raise(StoreLocked("busy"), True, True)


def test_a_full_disk_is_waited_for_on_request(sqlite_url: str) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            lift()

    with Store(sqlite_url, retry=RetryPolicy(60, full=True, say=say)) as store:
        lease = store.open("a", {})
        lift = full(store)
        store.save([Write(lease, 1, b"{}", {"0" * 64: bytes(1_000_000)})])
        assert store.tasks()[0].epochs == 1
    assert said[0].startswith("waiting for the database, for ")
    assert " s more at most: no room to write: " in said[0]
    assert said[-1].startswith("the database is back after ")


def test_a_wait_ends_when_it_is_asked_to(sqlite_url: str) -> None:
    asked: list[str] = []
    with Store(sqlite_url, retry=RetryPolicy(600, full=True, say=asked.append)) as store:
        store.wait_until(lambda: bool(asked))
        lease = store.open("a", {})
        lift = full(store)
        with pytest.raises(StoreFull, match=r"no room to write.*\(waited for \d+ s\)"):
            store.save([Write(lease, 1, b"{}", {"0" * 64: bytes(1_000_000)})])
        lift()


def test_the_end_of_a_patience_says_how_long_it_was() -> None:
    with pytest.raises(StoreLocked, match=r"busy \(waited for \d+ s\)"):
        wait_for_ever(Backoff(RetryPolicy(0.02)))


def test_a_permanent_failure_is_not_waited_for() -> None:
    for problem, passing, answered in (
        (StoreLocked("x"), False, True),
        (StoreUnreachable("x"), True, False),
        (StoreFull("x"), False, True),
    ):
        with pytest.raises(type(problem), match=r"^x$"):
            Backoff(RetryPolicy(60)).wait_or_raise(problem, passing, answered)


def test_pauses_grow_and_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    fake_time = SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)  # other threads keep the clock that there is
    monkeypatch.setattr(module, "time", fake_time)
    wait = Backoff(RetryPolicy(60))
    with pytest.raises(StoreLocked, match=r"waited for (58|59|60) s"):
        wait_for_ever(wait)
    assert max(slept) <= module.SLICE
    assert wait.pause == module.LONGEST


def test_a_killed_server_is_waited_for_until_it_returns(own_postgres: Any) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            own_postgres.start()

    with Store(own_postgres.new_database(), retry=RetryPolicy(60, say=say)) as store:
        lease = store.open("a", {})
        own_postgres.kill()
        store.save([Write(lease, 1, b"{}")])
        assert store.tasks()[0].epochs == 1
    assert said[0].startswith("waiting for the database")
    assert "no answer from" in said[0]
    assert said[-1].startswith("the database is back after")


@pytest.mark.slow
def test_a_server_that_never_answered_is_waited_for_if_it_is_known_to_be_right(own_postgres: Any) -> None:
    url = own_postgres.new_database()
    own_postgres.kill()
    with pytest.raises(StoreUnreachable, match="check that the server runs"):
        Store(url, retry=RetryPolicy(600))
    with Store(url, retry=RetryPolicy(60, first=True, say=lambda text: own_postgres.start())) as store:
        assert store.tasks() == []


def test_a_directory_that_went_away_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()

    def say(text: str) -> None:
        if (tmp_path / "away").exists():
            (tmp_path / "away").rename(tmp_path / "disk")

    with Store(f"sqlite:///{tmp_path / 'disk' / 'a.db'}", retry=RetryPolicy(60, say=say)) as store:
        store.database.close()
        (tmp_path / "disk").rename(tmp_path / "away")
        store.open("a", {})
        assert [row.uid for row in store.tasks()] == ["a"]
