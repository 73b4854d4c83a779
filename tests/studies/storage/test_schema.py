"""The tables: created once by the first process, migrated, and refused if they are too new."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.errors import DamagedRow, SchemaMismatch, StoreError
from rekindle.studies.storage.rows import Segment
from rekindle.studies.storage.sql import schema
from rekindle.studies.storage.store import Store
from rekindle.tasks.checkpoint.state import pack
from rekindle.tasks.checkpoint.storage import Write

SCHEMA_1 = Path(__file__).parent / "schemas" / "1.sql"


def columns(connection: sa.Connection) -> dict[str, list[tuple[str, str, bool]]]:
    inspector = sa.inspect(connection)
    return {
        table: [
            (column["name"], str(column["type"]), bool(column["nullable"])) for column in inspector.get_columns(table)
        ]
        for table in sorted(inspector.get_table_names())
    }


def test_opening_makes_the_tables_once_and_then_only_looks(url: str) -> None:
    Store(url).close()
    with Store(url) as store:
        assert store.database.read(schema.version_of) == schema.VERSION
        assert store.database.read(lambda c: c.execute(sa.select(schema.schema)).all()) == [(schema.VERSION,)]
        store.database.write(lambda c: schema.upgrade(c, store.url))
        assert store.database.read(lambda c: c.execute(sa.select(schema.schema)).all()) == [(schema.VERSION,)]


def test_many_processes_may_make_the_tables_at_once(url: str, child: Callable[..., Any]) -> None:
    code = """
import sys
from rekindle.studies.storage.store import Store
print("ready", flush=True)
sys.stdin.readline()
with Store(sys.argv[1]) as store:
    with store.open(sys.argv[2], {}) as lease:
        print(lease.token, flush=True)
"""
    processes = [child(code, url, number) for number in range(4)]
    assert [process.hear() for process in processes] == ["ready"] * 4
    for process in processes:
        process.say()
    assert [process.hear() for process in processes] == ["1"] * 4
    with Store(url) as store:
        assert len(store.tasks()) == 4


def test_a_newer_schema_is_refused_with_the_cure(url: str) -> None:
    with Store(url) as store:
        store.database.write(lambda c: c.execute(schema.schema.update().values(version=schema.VERSION + 1)))
    law = f"have schema {schema.VERSION + 1}, but this Rekindle knows schemas up to {schema.VERSION}: upgrade it"
    with pytest.raises(SchemaMismatch, match=rf"{law} \(pip"):
        Store(url)


def grow(connection: sa.Connection) -> None:
    connection.execute(sa.text("ALTER TABLE rk_task ADD COLUMN note TEXT"))


def test_an_older_schema_is_brought_up_to_date_on_opening(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(url) as store:
        store.open("a", {"seed": 1}).release()
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, grow))
    for _ in range(2):
        with Store(url) as store:
            assert store.database.read(schema.version_of) == schema.VERSION
            assert "note" in [name for name, *_ in store.database.read(columns)["rk_task"]]
            assert store.tasks()[0].identity == {"seed": 1}


def test_a_migration_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sa.Connection) -> None:
        connection.execute(sa.text("ALTER TABLE rk_nowhere ADD COLUMN note TEXT"))

    with Store(url) as store:
        before = store.database.read(columns)
    with monkeypatch.context() as newer:
        newer.setattr(schema, "VERSION", schema.VERSION + 2)
        newer.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, grow, fail))
        with pytest.raises(StoreError, match="rk_nowhere"):
            Store(url)
    with Store(url) as store:
        assert store.database.read(columns) == before
        assert store.database.read(schema.version_of) == schema.VERSION


def test_a_migration_tells_which_checkpoints_lie_within_an_epoch(url: str) -> None:
    with Store(url) as store:
        for uid, count in (("a", 0), ("b", 3)):
            manifest = pack({"learner": {"tally": {"count": count}}}).manifest
            with store.open(uid, {}) as lease:
                store.save([Write(lease, 2, manifest)])
        later = {"rk_checkpoint": ("within_epoch",), "rk_segment": ("eval_steps", "eval_error")}
        for statement in (f"ALTER TABLE {table} DROP COLUMN {name}" for table in later for name in later[table]):
            store.database.write(lambda c, text=statement: c.execute(sa.text(text)))  # type: ignore[misc]
        store.database.write(lambda c: c.execute(schema.schema.update().values(version=6)))
    with Store(url) as store:
        assert [store.checkpoints(uid)[0].within_epoch for uid in "ab"] == [False, True]
        assert [store.load(uid, 2) is None for uid in "ab"] == [False, True]  # no state at the end of its epoch 2
        assert store.load("b") is not None


def test_a_database_of_schema_1_opens_with_all_that_it_holds(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.executescript(SCHEMA_1.read_text())
    connection.close()
    with Store(f"sqlite:///{tmp_path / 'old.db'}") as store, Store(f"sqlite:///{tmp_path / 'new.db'}") as new:
        assert store.database.read(columns) == new.database.read(columns)
        saved = store.load("a")
        assert saved is not None
        assert (saved.epochs, saved.metrics) == (3, [(3, {"return": 21.5})])
        (name,) = store.checkpoints("a")[0].blobs
        assert saved.fetch(name) == b"some state"
        assert [event.kind for event in store.events("a")] == ["start", "mode"]
        assert store.study("s").config == {"trials": 1}
        assert store.trials("s")[0].params == {"gamma": 0.99}
        assert store.segments("s") == [Segment(0, 0, 3)]
        store.save([Write(store.open("a", {"algorithm": "ppo"}), 4, b"{}")])


@pytest.mark.parametrize("text", ["{", "NaN", '{"a":1', "[" * 100_000, ""])
def test_a_column_that_holds_no_json_is_an_error_that_says_so(store: Store, text: str) -> None:
    store.change_study("s", lambda _: {})
    raw = sa.text("UPDATE rk_study SET config = :text").bindparams(text=text)
    store.database.write(lambda c: c.execute(raw))
    with pytest.raises(DamagedRow, match="a JSON column must hold JSON, but one holds"):
        store.studies()


def test_json_survives_a_round_trip(store: Store) -> None:
    config = {
        "a": [1, 2.5, None, True, "\x00é"],
        "b": {"float": "four"},
        "c": [-math.inf, {"d": math.inf}],
        "e": 1e-320,
    }
    store.change_study("s", lambda _: config)
    assert store.study("s").config == config
