"""Orion's database in SQL, compared with Orion's own in-memory database, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from orion.core.io.database import Database, DatabaseError, DatabaseTimeout, DuplicateKeyError, database_factory
from orion.core.io.database.ephemeraldb import EphemeralDB
from rekindle.studies.orion.db import RekindleSQL
from rekindle.studies.orion.document_tables import Collections
from rekindle.studies.orion.documents import DocumentError, decode, encode, index_text, lookup
from studying import sqlite_first

FORK = multiprocessing.get_context("fork")
NOON = datetime(2026, 1, 1, 12)


@pytest.fixture
def db(url: str) -> Iterator[RekindleSQL]:
    database = RekindleSQL(host=url)
    yield database
    database.close_connection()


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[RekindleSQL]:
    database = RekindleSQL(host=sqlite_url)
    yield database
    database.close_connection()


def trials(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"experiment": 1, "id": f"t{i}", "status": "new", "n": i, **more} for i in range(count)]


# What Orion's own database does, this one does


class Caller:
    """Makes the same random calls of any database, and keeps what they return."""

    def __init__(self, database: Database, seed: int):
        self.database, self.random, self.count = database, random.Random(seed), 0

    def document(self) -> dict[str, Any]:
        self.count += 1
        pick = self.random.choice
        return {
            "serial": self.count,
            "experiment": pick([1, 2, "one"]),
            "status": pick(["new", "reserved", "completed", None]),
            "heartbeat": pick([None, NOON, NOON + timedelta(seconds=self.random.randrange(60))]),
            "name": pick(["a", "b", "ü\x00", "long" * 100]),
            "version": pick([1, 2, 1.0, True]),
            "refers": {"parent_id": pick([None, 1, 2]), "root": {"id": pick([1, 2])}},
            "values": pick([[], [1, {"a": (1, 2)}], {"deep": {"er": b"bytes"}}]),
        }

    def query(self) -> dict[str, Any]:
        pick, one = self.random.choice, self.document()
        known = [
            {"serial": self.random.randint(1, self.count)},
            {"experiment": one["experiment"]},
            {"status": one["status"]},
            {"status": {"$in": ["new", one["status"]]}},
            {"status": {"$ne": one["status"]}},
            {"experiment": one["experiment"], "status": pick(["new", "reserved"])},
            {"refers.parent_id": one["refers"]["parent_id"]},
            {"refers.root.id": {"$in": [1, "x"]}},
            {"refers": {"root": {"id": one["refers"]["root"]["id"]}}},
            {"heartbeat": {pick(["$lte", "$gte", "$gt"]): NOON + timedelta(seconds=30)}, "experiment": 1},
            {"name": one["name"], "version": one["version"]},
            {"version": {"$gt": 1}},
            {"nothing.like": "it"},
            {"nothing": {"$ne": 1}},
            {},
        ]
        return pick(known)

    def call(self) -> Any:
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return self.database.write("things", self.document())
            case 3:
                data = {"status": "reserved", "heartbeat": NOON, "values": {"now": {"this": [1.5, None]}}}
                return self.database.write("things", data, self.query())
            case 4:
                return self.plain([self.database.read_and_write("things", self.query(), {"status": "taken"})])
            case 5:
                return self.database.remove("things", {**self.query(), "serial": {"$gt": self.count - 5}})
            case 6:
                return self.database.count("things", self.query())
            case _:
                keep = self.random.choice([None, {"serial": 1}, {"serial": 1, "refers.root": 1}, {"status": 0}])
                return self.plain(self.database.read("things", self.query(), keep))

    def plain(self, documents: list[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
        """Without numbers, which Orion's own gives again once they were removed."""
        return [document and {k: v for k, v in document.items() if k != "_id"} for document in documents]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_random_calls_return_what_they_return_of_orions_own_database(db: RekindleSQL, seed: int) -> None:
    ours, theirs = Caller(db, seed), Caller(EphemeralDB(), seed)
    for i in range(120):
        assert ours.call() == theirs.call(), f"call {i}"
    assert ours.plain(db.read("things")) == theirs.plain(theirs.database.read("things"))


def test_orion_finds_the_class_by_its_entry_point(sqlite_url: str) -> None:
    assert isinstance(database_factory.create("RekindleSQL", host=sqlite_url), RekindleSQL)


# Values


def test_values_come_back_as_what_they_were(db: RekindleSQL) -> None:
    document = {
        "none": None,
        "true": True,
        "whole": 10**30,
        "real": 0.1,
        "nan": float("inf"),
        "minus": float("-inf"),
        "text": "a\x00b\ud800ü",
        "naive": NOON,
        "aware": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))),
        "bytes": b"\x00\xff" * 5000,
        "more": [b"", b"x"],
        "tuple": (1, (2, [3])),
        "dots.in.keys": {"a.b": 1},
        "keys": {1: "one", None: "none", "$in": 2},
        "empty": {},
        "nothing": [],
        "tag": {"$bytes": [0, 1]},
    }
    db.write("things", document)
    [read] = db.read("things")
    assert read == document
    assert [type(v) for v in read.values()] == [type(v) for v in document.values()]
    assert np.isnan(decode(*encode({"x": float("nan")}))["x"])


def test_numpy_numbers_and_paths_become_plain_ones(db: RekindleSQL, tmp_path: Any) -> None:
    db.write("trials", {"experiment": np.int64(3), "real": np.float64(0.5), "yes": np.bool_(True), "dir": tmp_path})
    [read] = db.read("trials", {"experiment": 3}, {"_id": 0})
    assert read == {"experiment": 3, "real": 0.5, "yes": True, "dir": str(tmp_path)}
    assert [type(v) for v in read.values()] == [int, float, bool, str]


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(2), 1j])
def test_a_value_that_cannot_be_stored_is_named_with_its_path(sqlite: RekindleSQL, value: Any) -> None:
    with pytest.raises(DatabaseError, match=rf"results\[1\]\.value is a {type(value).__name__}"):
        sqlite.write("trials", {"results": [1, {"value": value}]})
    circle: dict[str, Any] = {}
    circle["self"] = circle
    with pytest.raises(DatabaseError, match="nested too deeply"):
        sqlite.write("trials", circle)
    assert sqlite.count("trials") == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_any_document_survives_a_round_trip(document: dict[str, Any]) -> None:
    assert decode(*encode(document)) == document


hostile = st.recursive(
    st.none() | st.integers(-5, 5) | st.sampled_from(["nan", "x", "2026-01-01"]),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["$bytes", "$map", "$tuple", "$float", "$datetime", "$", "a"]), inner, max_size=2
        )
    ),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.text() | hostile.map(lambda v: json.dumps({"a": v})), st.binary(max_size=4))
def test_damaged_text_is_an_error_and_nothing_else(text: str, blob: bytes) -> None:
    with suppress(DocumentError):
        assert isinstance(decode(text, blob), dict)


def test_equal_scalars_and_only_those_have_one_index_text() -> None:
    values = [
        None,
        0,
        1,
        -1,
        1.5,
        10**20,
        "",
        "1",
        "null",
        "n1",
        NOON,
        NOON + timedelta(microseconds=1),
        NOON.replace(tzinfo=UTC),
        "x" * 300,
        "x" * 301,
    ]
    assert len({index_text(v) for v in values}) == len(values)
    assert index_text(1) == index_text(1.0) == index_text(True)
    assert index_text(NOON.replace(tzinfo=UTC)) == index_text(NOON.replace(tzinfo=UTC).astimezone(timezone.max))
    assert index_text([1]) is index_text(float("nan")) is None


def test_keys_with_dots_are_found_by_their_name_and_by_their_path() -> None:
    document = {"space": {"optimizer.lr": 1, "optimizer": {"eps": 2}}, "a.b": 3}
    assert lookup(document, "space.optimizer.lr") == 1
    assert lookup(document, "space.optimizer.eps") == 2
    assert lookup(document, "a.b") == 3


# Queries, projections, updates


def test_operators_compare_like_with_like(db: RekindleSQL) -> None:
    beats = [None, 120, NOON, NOON + timedelta(seconds=1), "2026", NOON.replace(tzinfo=UTC)]
    db.write("trials", [{"heartbeat": beat, "n": i} for i, beat in enumerate(beats)])

    def numbers(condition: dict[str, Any]) -> list[int]:
        return [d["n"] for d in db.read("trials", {"heartbeat": condition})]

    assert numbers({"$lte": NOON}) == [2]
    assert numbers({"$gte": NOON}) == [2, 3]
    assert numbers({"$lt": NOON + timedelta(seconds=1)}) == [2]
    assert numbers({"$gt": NOON, "$lt": NOON + timedelta(days=1)}) == [3]
    assert numbers({"$lt": 200}) == [1]
    assert db.count("trials", {"heartbeat": {"$lte": NOON}}) == 1
    assert db.count("trials", {"heartbeat": {"$in": [None, 120.0, [1]]}}) == 2


def test_an_unknown_operator_is_an_error_that_names_the_near_one(sqlite: RekindleSQL) -> None:
    with pytest.raises(DatabaseError, match=r"'\$inn' at 'a\.b'; did you mean \$in\?"):
        sqlite.read("trials", {"a": {"b": {"$inn": 1}}})


def test_projections_keep_or_drop(db: RekindleSQL) -> None:
    db.write("things", {"_id": 5, "a": 1, "b": {"c": b"2", "d": 3}})
    for selection, expected in [
        (None, {"_id": 5, "a": 1, "b": {"c": b"2", "d": 3}}),
        ({"a": 1, "nothing": 1}, {"_id": 5, "a": 1}),
        ({"b.c": 1, "_id": 0}, {"b": {"c": b"2"}}),
        ({"b.c": 0}, {"_id": 5, "a": 1, "b": {"d": 3}}),
        ({"_id": 1}, {"_id": 5}),
        ({"_id": 0}, {"a": 1, "b": {"c": b"2", "d": 3}}),
    ]:
        assert db.read("things", {}, selection) == [expected], selection
        assert db.read_and_write("things", {"a": 1}, {"a": 1}, selection) == expected, selection
    with pytest.raises(DatabaseError, match="keeps keys or drops them"):
        db.read("things", {}, {"a": 1, "b": 0})


def test_updates_set_dotted_keys_and_never_the_id(db: RekindleSQL) -> None:
    db.write("things", [{"a": {"b": 1, "c": 2}}, {"a": 3}])
    assert db.write("things", {"a.b": {"new": 0}, "d": NOON}, {"a.c": 2}) == 1
    assert db.write("things", {"a.b": 4}, {"a": 3}) == 1
    assert [d["a"] for d in db.read("things")] == [{"b": {"new": 0}, "c": 2}, {"b": 4}]
    assert db.write("things", {"_id": 1, "e": 1}, {"_id": 1}) == 1
    assert db.write("things", {"e": 1}, {"_id": 99}) == 0
    with pytest.raises(DatabaseError, match="never changes"):
        db.write("things", {"_id": 7}, {})


def test_numbers_are_set_in_place_and_never_given_again(db: RekindleSQL) -> None:
    documents = [{"n": 0}, {"n": 1, "_id": "mine"}, {"n": 2, "_id": 10}]
    assert db.write("things", documents) == 3
    assert [d["_id"] for d in documents] == [1, "mine", 10]
    db.remove("things", {"_id": 10})
    db.write("things", last := {"n": 3})
    assert last["_id"] == 11
    assert [d["n"] for d in db.read("things")] == [0, 1, 3]
    with pytest.raises(DuplicateKeyError, match="'mine'"):
        db.write("things", {"_id": "mine"})
    with pytest.raises(DatabaseError, match="an _id is a number or text"):
        db.write("things", {"_id": [1]})


# Unique indexes


def test_a_unique_index_holds_for_inserts_and_updates(db: RekindleSQL) -> None:
    db.ensure_index("experiments", [("name", db.ASCENDING), ("version", db.ASCENDING)], unique=True)
    db.write("experiments", [{"name": "a", "version": 1}, {"name": "a", "version": 2}])
    with pytest.raises(DuplicateKeyError, match="name_1_version_1"):
        db.write("experiments", [{"name": "b", "version": 1}, {"name": "a", "version": 1.0}])
    assert db.count("experiments") == 2, "half of a refused list was written"
    with pytest.raises(DuplicateKeyError):
        db.write("experiments", {"version": 2}, {"version": 1})
    with pytest.raises(DuplicateKeyError):
        db.read_and_write("experiments", {"version": 1}, {"version": 2})
    assert db.write("experiments", {"version": 3}, {"version": 1}) == 1
    db.write("experiments", {"name": "a", "version": 1})
    db.remove("experiments", {"version": 3})
    db.write("experiments", {"name": "a", "version": 3})


def test_an_index_is_made_for_what_is_there_or_not_at_all(db: RekindleSQL) -> None:
    db.write("trials", [{"a": {"b": 1}}, {"a": {"b": 1}}, {"a": {}}])
    with pytest.raises(DuplicateKeyError):
        db.ensure_index("trials", "a.b", unique=True)
    db.ensure_index("trials", [("a.b", db.DESCENDING)])
    assert db.index_information("trials") == {"_id_": True, "a.b_-1": False}
    db.write("trials", {"a.b": 2}, {"_id": 1})
    db.ensure_index("trials", "a.b", unique=True)
    db.ensure_index("trials", "a.b", unique=True)
    with pytest.raises(DuplicateKeyError):
        db.write("trials", {"nothing": "of it"})
    db.drop_index("trials", "a.b_1")
    db.write("trials", {"nothing": "of it"})
    assert db.index_information("trials") == {"_id_": True, "a.b_-1": False}
    with pytest.raises(DatabaseError, match=r"index not found with name a\.b_1"):
        db.drop_index("trials", "a.b_1")


# Several processes and threads


def _take_all(database: RekindleSQL, taken: Any) -> None:
    while document := database.read_and_write(
        "trials", {"experiment": 1, "status": {"$in": ["new"]}}, {"status": "taken"}
    ):
        taken.put(document["n"])


def test_no_two_processes_take_the_same_document(db: RekindleSQL) -> None:
    db.write("trials", trials(60))
    taken = FORK.SimpleQueue()
    workers = [FORK.Process(target=_take_all, args=(db, taken)) for _ in range(4)]
    for worker in workers:
        worker.start()
    got = [taken.get() for _ in range(60)]
    for worker in workers:
        worker.join(300)
    assert sorted(got) == list(range(60))
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert taken.empty()


def _insert(database: RekindleSQL, shared: Any, prefix: str) -> None:
    for i in range(15):
        database.write("trials", {"experiment": 1, "id": f"{prefix}{i}"})
        try:
            database.write("trials", {"experiment": 1, "id": f"shared{i}"})
            shared.put(i)
        except DuplicateKeyError:
            pass


def test_of_equal_documents_that_several_processes_insert_one_stays(db: RekindleSQL) -> None:
    db.ensure_index("trials", [("experiment", 0), ("id", 0)], unique=True)
    shared = FORK.SimpleQueue()
    workers = [FORK.Process(target=_insert, args=(db, shared, name)) for name in "abc"]
    for worker in workers:
        worker.start()
    won = sorted(shared.get() for _ in range(15))
    for worker in workers:
        worker.join(300)
    assert won == list(range(15))
    assert shared.empty()
    assert db.count("trials") == 60
    assert len({d["_id"] for d in db.read("trials")}) == 60


def test_a_document_that_is_being_changed_is_passed_over_or_waited_for(postgres_url: str) -> None:
    holder, taker = RekindleSQL(host=postgres_url), RekindleSQL(host=postgres_url)
    holder.write("trials", trials(2))
    held, go = threading.Event(), threading.Event()

    def hold(rows: Collections) -> None:
        rows.update_first("trials", {"id": "t0"}, {"status": "held"})
        held.set()
        go.wait(300)

    engine = sa.create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    thread = threading.Thread(target=lambda: _transaction(engine, hold))
    thread.start()
    held.wait(300)
    assert taker.read_and_write("trials", {"experiment": 1, "status": "new"}, {"status": "mine"})["id"] == "t1"  # type: ignore[index]
    threading.Timer(0.2, go.set).start()
    assert taker.read_and_write("trials", {"id": "t0"}, {"status": "mine"}) is not None
    thread.join()
    engine.dispose()
    assert taker.count("trials", {"status": "mine"}) == 2


def _transaction(engine: sa.Engine, work: Callable[[Collections], None]) -> None:
    with engine.begin() as connection:
        work(Collections(connection))


@sqlite_first
def test_threads_share_one_database_and_forks_start_their_own(db: RekindleSQL) -> None:
    db.write("trials", [{"n": i, "beats": 0} for i in range(3)])
    stop = threading.Event()

    def beat(n: int) -> None:
        while not stop.is_set():
            db.write("trials", {"heartbeat": db.now()}, {"n": n})

    threads = [threading.Thread(target=beat, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    workers = [FORK.Process(target=_insert, args=(db, FORK.SimpleQueue(), f"f{i}")) for i in range(3)]
    for worker in workers:  # forks while the threads are at the database
        worker.start()
    for worker in workers:
        worker.join(300)
    stop.set()
    for thread in threads:
        thread.join()
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert db.count("trials", {"experiment": 1}) == 3 * 30


def test_a_database_that_waits_holds_up_no_other_one(sqlite: RekindleSQL, tmp_path: Any) -> None:
    other, held, go, went = RekindleSQL(host=str(tmp_path / "other.db")), threading.Event(), threading.Event(), []

    def hold(rows: Collections) -> None:
        held.set()
        went.append(go.wait(60))

    thread = threading.Thread(target=sqlite.transact, args=(hold,))
    thread.start()
    assert held.wait(300)
    other.write("trials", {"n": 1})
    go.set()
    thread.join()
    assert went == [True], "the other database waited for this one"
    other.close_connection()


def test_a_pickled_database_is_the_same_database(db: RekindleSQL) -> None:
    db.write("trials", trials(3))
    copy = pickle.loads(pickle.dumps(db))
    assert copy.read("trials") == db.read("trials")
    assert copy.is_connected
    db.close_connection()
    copy.remove("trials", {"id": "t1"})
    assert db.count("trials") == 2, "a closed connection opens again"
    copy.close_connection()


def test_now_is_the_clock_of_the_database_in_utc(db: RekindleSQL) -> None:
    rounding = timedelta(seconds=1)
    before = datetime.now(UTC).replace(tzinfo=None)
    now = db.now()
    assert now.tzinfo is None
    assert before - rounding <= now <= datetime.now(UTC).replace(tzinfo=None) + rounding
    assert db.now() >= now


# Errors


def test_a_busy_database_is_tried_again_for_so_long_and_then_times_out(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.studies.storage.sql.database.BUSY_SECONDS", 0.1)
    database = RekindleSQL(host=sqlite_url, timeout=0.3)
    other = sa.create_engine(sqlite_url, connect_args={"isolation_level": None, "timeout": 0.1})
    with other.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseTimeout, match="locked"):
            database.write("trials", {})
        assert database.read("trials") == [], "readers do not wait for writers"
        connection.exec_driver_sql("ROLLBACK")
    database.write("trials", {})
    other.dispose()


def test_no_message_holds_the_password() -> None:
    with pytest.raises(DatabaseError, match="no answer") as caught:
        RekindleSQL(host="postgresql://me@127.0.0.1:1/studies", password="sesame", timeout=0.1)
    with pytest.raises(DatabaseError) as misspelled:
        RekindleSQL(host="postgres+psycop://me:sesame@127.0.0.1/studies")
    for error in (caught, misspelled):
        assert "sesame" not in str(error.value) + repr(error.value)


def test_the_shown_url_hides_the_password(postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "postgres:sesame@")
    for database in (RekindleSQL(host=url), RekindleSQL(host=postgres_url, password="sesame")):
        output = repr(database) + str(database.host) + repr(pickle.loads(pickle.dumps(database)))
        assert "sesame" not in output
        assert "***" in output


@pytest.mark.parametrize(
    ("host", "cure"),
    [
        ("mysql://me@there/studies", "SQLite .* and PostgreSQL"),
        ("sqlite://", "name a file"),
        ("/no/such/folder/orion.db", "mkdir -p"),
        ("postgresl://me@there/studies", "did you mean postgresql"),
    ],
)
def test_a_wrong_address_is_an_error_with_its_cure(host: str, cure: str) -> None:
    with pytest.raises(DatabaseError, match=cure):
        RekindleSQL(host=host)


def test_a_path_is_a_sqlite_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    database = RekindleSQL(host="orion.db", name="orion", port=27017)  # Orion always gives its defaults too
    monkeypatch.chdir("/")
    database.write("trials", {})
    assert (tmp_path / "orion.db").exists()
    monkeypatch.chdir(tmp_path)
    assert "studies.db" in RekindleSQL(host="").host


def test_damaged_rows_and_newer_tables_are_refused(db: RekindleSQL) -> None:
    db.write("trials", trials(1))

    def run(statement: str) -> None:
        db.transact(lambda rows: rows._connection.execute(sa.text(statement)))

    run('UPDATE rk_orion_document SET body = \'{"a": {"$bytes": [0, 9]}}\', blob = NULL')
    with pytest.raises(DatabaseError, match="document 1 of trials has no _id"):
        db.read("trials")
    run("UPDATE rk_orion_document SET body = '{\"a\": '")
    with pytest.raises(DatabaseError, match="damaged"):
        db.read("trials")
    run("UPDATE rk_orion_schema SET version = 7")
    with pytest.raises(DatabaseError, match="are of version 7"):
        pickle.loads(pickle.dumps(db))


# Speed


def test_orions_most_frequent_queries_use_an_index(sqlite: RekindleSQL) -> None:
    asked: list[tuple[str, Any]] = []
    assert sqlite._sql is not None
    engine = sqlite._sql.engine

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and "rk_orion" in statement:
            asked.append((statement, parameters))

    sa.event.listen(engine, "before_cursor_execute", note)
    sqlite.ensure_index("trials", [("experiment", 0), ("id", 0)], unique=True)
    sqlite.write("trials", trials(5, worker=None))
    sqlite.read_and_write(
        "trials", {"experiment": 1, "status": {"$in": ["new", "interrupted"]}}, {"status": "reserved"}
    )
    sqlite.write("trials", {"status": "completed"}, {"id": "t0", "experiment": 1, "status": "reserved", "worker": None})
    sqlite.read("trials", {"experiment": 1, "status": "reserved", "heartbeat": {"$lte": NOON}})
    sqlite.count("trials", {"experiment": 1, "status": "completed"})
    sqlite.read("experiments", {"name": "a"})
    sqlite.read("experiments", {"_id": 1})
    sqlite.read_and_write("algo", {"experiment": 1, "locked": 0}, {"locked": 1})
    sa.event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        for statement, parameters in asked:
            plan = [row[3] for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters)]
            assert all(step.startswith(("SEARCH", "USE TEMP B-TREE FOR ORDER BY")) for step in plan), (statement, plan)
            if "experiment = ?" in statement:
                assert any("experiment=?" in step for step in plan), (statement, plan)
    assert len(asked) > 10
