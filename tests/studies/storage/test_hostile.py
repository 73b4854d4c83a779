"""Malicious content of databases and files: an error of ours, never a crash, a hang or exhausted memory."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import sample_study as sample
import sqlalchemy as sa
import torch
from rekindle.spaces import SpaceError
from rekindle.studies.cli import main
from rekindle.studies.engine.status_views import status_view
from rekindle.studies.engine.task_views import task_view
from rekindle.studies.errors import StoreError
from rekindle.studies.failures import FAILED, RETRY_RULES
from rekindle.studies.redact import masked, masked_url
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.sql import columns, schema
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.exporting import export_study
from rekindle.studies.upkeep.fsck import check, repair
from rekindle.studies.upkeep.gc import gc
from rekindle.studies.upkeep.shrinking import shrink
from rekindle.tasks.checkpoint.manifests import canonical_json
from rekindle.tasks.checkpoint.state import unpack
from rekindle.tasks.checkpoint.storage import Write
from rekindle.tasks.errors import DamagedState, TaskError
from safetensors.torch import save as save_safetensors
from sample_study import DEEP, MIB, NESTED, bounded, uid
from sample_study import filled as filled
from sample_study import filled_url as filled_url
from sample_study import templates as templates

OURS = (StoreError, TaskError, SpaceError)


def everything(store: Store, directory: Path) -> list[Callable[[], Any]]:
    """All that reads a database."""

    def open_() -> None:
        with store.open(uid(2), {"task": "ppo", "number": 2}) as lease:
            saved = lease.load()
            if saved is not None:
                unpack(saved.manifest, saved.fetch)

    return [
        store.tasks,
        store.workers,
        store.studies,
        open_,
        lambda: store.checkpoints(uid(0)),
        lambda: store.metrics(uid(0)),
        lambda: store.events(uid(0)),
        lambda: store.trials(sample.NAME),
        lambda: store.segments(sample.NAME),
        lambda: store.load(uid(0)),
        lambda: status_view(store).to_json(),
        lambda: [task_view(store, row.uid).to_json() for row in store.tasks()[:1]],
        lambda: store.claim(sample.NAME, [uid(2)]),
        lambda: export_study(store, sample.NAME, directory / "x.rekindle"),
        lambda: store.histories([uid(n) for n in range(4)]),
        lambda: gc(store),
        lambda: repair(store, check(store)),
        lambda: shrink(store),
    ]


def read_everything(url: str, directory: Path) -> None:
    """Reads all of a database; whatever is in it, the errors are ours."""
    try:
        with Store(url, retry=1.0) as store:
            for read in everything(store, directory):
                try:
                    read()
                except OURS:
                    continue
    except OURS:
        return


HOSTILE_VALUES: dict[type, list[str]] = {
    columns.Integer: ["x'00ff'", "'text'", "1e300", str(2**62), "-1"],
    columns.Double: ["x'00ff'", "'text'"],
    columns.Text: ["x'00ff'", "x'ff'", "''"],
    columns.LargeBinary: ["1 << 40", "'text'"],
    columns.Json: ["x'00ff'", "7"],
    columns.Numbers: ["x'00ff'", "7"],
    columns.Attributes: ["x'00ff'", "7"],
}
HOSTILE_JSON = [
    "[]",
    "1",
    "null",
    '"x"',
    "{",
    DEEP,
    NESTED,
    '{"a":' * 200 + "1" + "}" * 200,
    "NaN",
    '{"float":[]}',
    "9" * 5000,
    '{"until":"x"}',
    '{"a":"\\ud800"}',
    '{"return":"x"}',
    '{"state":{}}',
    '{"version":1}',
    "\ufeff{}",
    " ",
]


TABLES = schema.metadata.sorted_tables
QUICK = {(name, False) for name in ("rk_trial", "rk_blob")}  # of `make slow`, all of every table


@pytest.mark.parametrize(
    ("table", "thorough"),
    [
        pytest.param(table, thorough, marks=() if (str(table), thorough) in QUICK else pytest.mark.slow)
        for table in TABLES
        for thorough in (False, True)
        if thorough or (str(table), thorough) in QUICK
    ],
    ids=str,
)
def test_a_file_that_holds_anything_anywhere_is_an_error_of_ours(
    table: sa.Table, thorough: bool, templates: dict[str, str], tmp_path: Path
) -> None:
    path, seen = tmp_path / "hostile.db", set[type]()
    for index, column in enumerate(table.columns):
        if type(column.type) in seen and not thorough:
            continue  # one column of each type
        seen.add(type(column.type))
        if isinstance(column.type, columns.Json) and str(table) != "rk_metric" and not thorough:
            continue  # the next test fills them
        values = HOSTILE_VALUES[type(column.type)]
        for value in values if thorough else [values[index % len(values)]]:
            shutil.copy(templates["sqlite"].removeprefix("sqlite:///"), path)
            with sqlite3.connect(path) as connection, suppress(sqlite3.IntegrityError):  # it refuses some by itself
                connection.execute(f"UPDATE OR IGNORE {table} SET {column.name} = {value}")
            connection.close()
            with bounded():
                read_everything(f"sqlite:///{path}", tmp_path)


JSON_COLUMNS = [
    (table.name, column.name)
    for table in schema.metadata.sorted_tables
    for column in table.columns
    if isinstance(column.type, columns.Json)
]


@pytest.mark.parametrize("filled_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize(("table", "column"), JSON_COLUMNS)
def test_hostile_json_is_an_error_of_ours(filled_url: str, table: str, column: str, tmp_path: Path) -> None:
    # each text somewhere, and less often on PostgreSQL: one code reads what both give
    some = HOSTILE_JSON[JSON_COLUMNS.index((table, column)) % 9 :: 9 if filled_url.startswith("sqlite") else 18]
    for text in some:
        with Store(filled_url) as store:
            sample.execute(store, sa.text(f"UPDATE {table} SET {column} = :text").bindparams(text=text))
        with bounded():
            read_everything(filled_url, tmp_path)


@sample.on_sqlite
@pytest.mark.parametrize(
    "attrs",
    [
        {"bracket": []},
        {"bracket": "1"},
        {"bracket": -1},
        {"member": 10**30},
        {"seed": True},
        {"generation": None},
        {"parent": 0, "start": {}},
        {"parent": 0, "start": []},
        {"start": {"uid": "u", "epochs": 1, "digest": "d"}},
        {"parent": 0, "start": {"uid": 1, "epochs": 1, "digest": "d"}},
    ],
)
def test_schedulers_notes_on_a_trial_are_checked(filled: Store, attrs: dict[str, Any], tmp_path: Path) -> None:
    sample.execute(filled, sa.text("UPDATE rk_trial SET attrs = :text").bindparams(text=json.dumps(attrs)))
    with pytest.raises(StoreError, match=r"a JSON column must hold JSON, .* `rekindle fsck` says which"):
        filled.trials(sample.NAME)
    with pytest.raises(StoreError):
        filled.totals(sample.NAME)
    if "start" in attrs:  # which retention and exports follow
        with bounded():
            read_everything(filled.database.url.render_as_string(hide_password=False), tmp_path)


def test_a_number_where_bytes_belong_is_no_terabyte_of_zeros(templates: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "hostile.db"
    shutil.copy(templates["sqlite"].removeprefix("sqlite:///"), path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rk_blob SET data = 1 << 40")
    connection.close()
    with Store(f"sqlite:///{path}") as store, bounded():
        saved = store.load(uid(0))
        assert saved is not None
        with pytest.raises(StoreError, match="type bytes"):
            unpack(saved.manifest, saved.fetch)


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
BOMB = "hex(zeroblob(400000000))"
DISGUISES = {
    "is a view": f"DROP TABLE rk_metric; CREATE VIEW rk_metric AS {ENDLESS}",
    "is a trigger": f"CREATE TRIGGER t AFTER UPDATE ON RK_TASK BEGIN INSERT INTO rk_event (data) SELECT {BOMB}; END",
    "is a virtual table": "DROP TABLE rk_metric; CREATE VIRTUAL TABLE rk_metric USING fts5(uid, epoch, data)",
    "a column that is computed": f"ALTER TABLE rk_event ADD COLUMN more TEXT GENERATED ALWAYS AS ({BOMB}) VIRTUAL",
    "a default that is computed": "DROP TABLE rk_schema; "
    f"CREATE TABLE rk_schema (version INTEGER, more TEXT DEFAULT ({BOMB}))",
    "checks its rows": "DROP TABLE rk_schema; CREATE TABLE rk_schema (version INTEGER CHECK (length(version) < 9))",
    "an index of an expression": "CREATE INDEX more ON rk_event (length(data))",
    "an index of some rows": "CREATE INDEX more ON rk_event (data) WHERE id > 1",
}


@pytest.mark.parametrize("what", DISGUISES)
def test_disguised_tables_are_refused(what: str, templates: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "hostile.db"
    shutil.copy(templates["sqlite"].removeprefix("sqlite:///"), path)
    with sqlite3.connect(path) as connection:
        connection.executescript(DISGUISES[what])
    connection.close()
    with bounded(), pytest.raises(StoreError, match=what):
        Store(f"sqlite:///{path}")


def test_a_pause_that_has_no_end_is_as_long_as_pauses_are(filled: Store) -> None:
    for pause in (1e308, float("inf"), float("nan"), -1.0, "x", None, [], True):
        event = {"kind": "memory", "retry": True, "epochs": 3, "pause": pause}
        with filled.open(uid(2), {"task": "ppo", "number": 2}) as lease:
            filled.save([Write(lease, 3, events=[(FAILED, event)])])
        assert 0 <= filled.histories([uid(2)])[uid(2)].retry_in <= RETRY_RULES["memory"].longest


TERMINAL = "\x1b]0;owned\x07\x1b[2J[red][/]\u202e\r"


def test_a_terminal_is_told_nothing_by_a_database(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(sqlite_url) as store:
        store.change_study(TERMINAL, lambda _: {**sample.CONFIG, "task": "ppo"})
        store.add_rows(TERMINAL, trials=[Trial(0, f"a{TERMINAL}", {TERMINAL: TERMINAL})])
        store.add_rows(TERMINAL, segments=[Segment(0, 0, 2)])
        with store.open(f"a{TERMINAL}", {TERMINAL: TERMINAL}) as lease:
            store.save([Write(lease, 1, events=[(TERMINAL, {TERMINAL: TERMINAL})])])
            store.fail_trial(lease, TERMINAL, 0, 0, TERMINAL)
    for command in (["status"], ["trials", TERMINAL], ["show", "a"], ["fsck"], ["gc"], ["trials", "other"]):
        main([*command, "--storage", sqlite_url])
        output = "".join(capsys.readouterr())
        assert output
        assert not set(output) & set("\x1b\x07\u202e\r"), command


def test_owners_that_are_no_processes_end_by_the_clock(filled: Store) -> None:
    here = Owner.current()
    for owner in ("", ":", "a:b:c", "::::", "x" * 10_000, f"h:b:{'9' * 5000}:1", "h:b:-1:1", "\u202e:b:1:1"):
        sample.hold(filled, uid(2), owner, 60)
        assert owner in filled.workers()
        with pytest.raises(StoreError, match="held by"):
            filled.open(uid(2), {"task": "ppo", "number": 2})
        sample.hold(filled, uid(2), owner, -1)
        filled.open(uid(2), {"task": "ppo", "number": 2}).release()
    for pid in (0, -1, 2**31, 2**70):
        assert Owner(here.host, here.boot, pid, "1").is_dead()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_flipped_bits_of_a_database_file_are_errors_of_ours(
    seed: int, templates: dict[str, str], tmp_path: Path
) -> None:
    rng, path = random.Random(seed), tmp_path / "flipped.db"
    source = Path(templates["sqlite"].removeprefix("sqlite:///")).read_bytes()
    for _ in range(8 if seed else 4):
        data = bytearray(source)
        for _ in range(rng.choice([1, 10, 1000])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])]))
        for more in tmp_path.glob("flipped.db-*"):
            more.unlink()
        with bounded():
            read_everything(f"sqlite:///{path}", tmp_path)


# States


def state(**changes: Any) -> bytes:
    return canonical_json({"format": 1, "values": {}, "segments": {}, "tensors": None, **changes})


def test_a_list_that_names_one_segment_many_times_is_no_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 30))
    data = save_safetensors({"segment": torch.zeros(1 << 18)})
    name = hashlib.sha256(data).hexdigest()
    with bounded(memory=64 * MIB), pytest.raises(DamagedState, match="must fit into memory"):
        unpack(state(segments={"x": [name] * 10_000}), {name: data}.__getitem__)


@pytest.mark.parametrize(
    "shape", [[2**62], [2**63], [2**64], [2**32, 2**32], [-1], [0, 2**62], [1] * 100_000, "4", [1.5]]
)
def test_gigantic_shapes_are_damage(shape: Any) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 16]}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(16)
    name = hashlib.sha256(data).hexdigest()
    with bounded(), pytest.raises(DamagedState):
        unpack(state(tensors=name), {name: data}.__getitem__)


def test_paths_without_end_are_damage() -> None:
    path = "a/" * 500_000
    with bounded(), pytest.raises(DamagedState, match="fewer than 64 steps"):
        unpack(state(values={path: 1}), {}.__getitem__)
    data = save_safetensors({path[:200]: torch.zeros(1)})
    name = hashlib.sha256(data).hexdigest()
    with bounded(), pytest.raises(DamagedState, match="fewer than 64 steps"):
        unpack(state(tensors=name), {name: data}.__getitem__)
    with pytest.raises(DamagedState):
        unpack(state(values={"x": "DEEP"}).replace(b'"DEEP"', NESTED.encode()), {}.__getitem__)


# Passwords

SECRET = "hunter2"
URLS = [
    f"postgresql://me:{SECRET}@127.0.0.1:1/x",
    f"postgresql://me:a@{SECRET}@127.0.0.1:1/x",
    f"postgresql://me:a {SECRET}@127.0.0.1:1/x",
    f"postgresql://me:a/{SECRET}@127.0.0.1:1/x",
    f"postgresql://127.0.0.1:1/x?user=me&password={SECRET}",
    f"postgresql://127.0.0.1:1/x?password=a%20{SECRET}",
    f"postgresql://127.0.0.1:1/x?sslpassword={SECRET}&user=me",
    f"me:{SECRET}@host/x",
    f"postgresql:/me:{SECRET}@host",
    f"mysql://me:{SECRET}@host/x",
    f"postgresql+pg8000://me:{SECRET}@host/x",
    f"sqlite://me:{SECRET}@host/x",
    f"postgresql://me:{SECRET}@host:port/x",
    f"postgresql://:{SECRET}@127.0.0.1:1/x",
    f"postgresql://me:{SECRET}@[::1/x",
    f"postgres://me:{SECRET}@127.0.0.1:1/x",
    f" postgresql://me:{SECRET}@127.0.0.1:1/x",
]


@pytest.mark.parametrize("url", URLS)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store(url, retry=0.1)
    error: BaseException | None = caught.value
    output = io.StringIO()
    while error is not None:
        output.write(f"{error} {error!r}")
        error = error.__cause__
    assert SECRET not in output.getvalue()
    assert SECRET not in masked_url(url)


def test_nothing_that_is_stored_shows_a_password(postgres_url: str) -> None:
    url = postgres_url.replace("postgres@/", f"postgres:{SECRET}@/")
    with Store(url) as store:
        sample.fill(store)
        with store.open(uid(2), {"task": "ppo", "number": 2}) as lease:
            store.fail_trial(lease, sample.NAME, 2, 1, f"no answer from {url}, said postgres")
            assert SECRET not in f"{store!r} {store.url} {store.workers()} {lease!r}"
        for table in schema.metadata.sorted_tables:
            assert SECRET not in str(sample.rows(store, sa.select(table)))
        assert "postgres:***@" in str(store.trials(sample.NAME)[2].error)


def test_masking_hides_passwords_and_leaves_the_rest() -> None:
    for url in URLS[:1] + URLS[4:7]:
        assert SECRET not in masked(f"cannot reach {url} (is it up?)")
    for text in (f"password='a {SECRET}' host=x", f'{{"password": "{SECRET}"}}', f"PGPASSWORD={SECRET} psql"):
        assert SECRET not in masked(text)
    for text in ("password authentication failed", "sqlite:////a/b.db", "mail me@x.org", "ratio 3:4 @ 5"):
        assert masked(text) == text
    for url in ("sqlite:////a/b.db", "postgresql://me@host/x?user=a", "postgresql://host:5432/x"):
        assert masked_url(url) == url
