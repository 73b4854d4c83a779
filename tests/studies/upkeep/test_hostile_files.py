"""Malicious exported files, configurations and specs: refused before anything is stored."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sample_study as sample
from rekindle.spaces import SpaceError
from rekindle.studies.errors import StoreError
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.upkeep.exporting import export_study
from rekindle.studies.upkeep.importing import BadArchive, import_study
from rekindle.tasks.envs import EnvSpec, make_envs
from rekindle.tasks.envs.base.spec import EnvSpecError
from sample_study import DEEP, NESTED, bounded
from sample_study import templates as templates


@pytest.fixture(scope="module")
def file(templates: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "study.rekindle"
    with Store(templates["sqlite"]) as store:
        export_study(store, sample.NAME, path)
    return path


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A database that all are refused by, and that stays empty."""
    with Store(f"sqlite:///{tmp_path_factory.mktemp('empty') / 'store.db'}") as store:
        yield store


def tampered(file: Path, target: Path, *statements: str) -> Path:
    """A copy of an exported file that was changed by SQL, with a digest that is right."""
    target.write_bytes(file.read_bytes()[:-32])
    with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    target.write_bytes(target.read_bytes() + hashlib.sha256(target.read_bytes()).digest())
    return target


def refused(store: Store, file: Path, match: str = ".") -> None:
    with bounded(), pytest.raises(BadArchive, match=match) as caught:
        import_study(store, file)
    assert len(str(caught.value)) < 1000
    assert (store.studies(), store.tasks()) == ([], [])


def test_a_file_that_was_changed_with_care_is_imported(file: Path, store: Store, tmp_path: Path) -> None:
    change = "UPDATE rk_trial SET error = 'another' WHERE number = 1"
    assert import_study(store, tampered(file, tmp_path / "good", change)).new == 12
    assert store.trials(sample.NAME)[1].error == "another"


def test_flipped_bits_of_a_file_are_found(file: Path, empty: Store, tmp_path: Path) -> None:
    rng, source, path = random.Random(0), file.read_bytes(), tmp_path / "flipped"
    with bounded():
        for _ in range(50):
            data = bytearray(source)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            refused(empty, path)


def test_pages_that_somebody_broke_are_refused_whatever_the_digest_says(
    file: Path, empty: Store, tmp_path: Path
) -> None:
    rng, source, path = random.Random(0), file.read_bytes()[:-32], tmp_path / "broken"
    for _ in range(12):
        data = bytearray(source)
        at = rng.randrange(16, len(data) - 4096)
        data[at : at + 4096] = rng.randbytes(4096)
        path.write_bytes(data + hashlib.sha256(data).digest())
        refused(empty, path)


def test_a_file_that_was_cut_short_is_refused(file: Path, empty: Store, tmp_path: Path) -> None:
    source = file.read_bytes()
    for cut in (0, 1, 22, len(source) // 2, len(source) - 1):
        (tmp_path / "cut").write_bytes(source[:cut])
        refused(empty, tmp_path / "cut")
    refused(empty, tmp_path / "nothing", "cannot read")
    refused(empty, tmp_path, "cannot read")
    for data in (b"", b"x" * 4096):
        (tmp_path / "other").write_bytes(data + hashlib.sha256(data).digest())
        refused(empty, tmp_path / "other", "not a SQLite database")


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
DISGUISES = [
    ("ALTER TABLE rk_study RENAME TO x", f"CREATE VIEW rk_study AS {ENDLESS} SELECT i AS name FROM n"),
    ("DROP TABLE rk_event", f"CREATE VIEW rk_event AS {ENDLESS} SELECT i AS id FROM n"),
    ("CREATE TRIGGER t AFTER UPDATE ON rk_task BEGIN DELETE FROM rk_blob; END",),
    ("CREATE INDEX i ON rk_trial (length(hex(number)))",),
    ("CREATE INDEX i ON rk_trial (number) WHERE number > 0",),
    ("ALTER TABLE rk_blob ADD COLUMN more AS (hex(size))",),
    ("ALTER TABLE rk_blob ADD COLUMN more CHECK (length(hex(size)))",),
]


def test_tables_in_disguise_are_refused(file: Path, empty: Store, tmp_path: Path) -> None:
    for statements in DISGUISES:
        refused(empty, tampered(file, tmp_path / "bad", *statements))


ROWS = [
    *(f"UPDATE rk_trial SET number = {value} WHERE number = 2" for value in ("-1", 2**31, 2**62, 1.5, "'x'")),
    *(f"UPDATE rk_trial SET uid = {value} WHERE number = 2" for value in ("''", "hex(zeroblob(999))", "1", "x'00'")),
    "UPDATE rk_trial SET uid = 'a' || char(0) || 'b'",
    *(f"UPDATE rk_trial SET params = '{value}'" for value in ("[]", "null", "{", "x", DEEP, NESTED, "9" * 5000)),
    "UPDATE rk_trial SET attrs = '{\"start\": 1}'",
    *(f"UPDATE rk_trial SET state = {value}" for value in ("'x'", "''", "x'00'", "1")),
    *(f"UPDATE rk_trial SET error = {value}" for value in ("x'00'", "char(0)")),
    *(f"UPDATE rk_trial SET created = {value}" for value in ("'now'", "9e999", "x'00'")),
    "INSERT INTO rk_segment (study, number, rung, epochs, state) VALUES ('study', 77, 0, 1, 'ready')",
    "INSERT INTO rk_segment (study, number, rung, epochs, state) VALUES ('study', 3, 9, 1, 'done')",
    "UPDATE rk_segment SET epochs = -1 WHERE number = 2",
    'UPDATE rk_segment SET objectives = \'{"return": "x"}\'',
    "INSERT INTO rk_task SELECT 'uid-9', identity, NULL, 0, 0, 0, created, 0 FROM rk_task LIMIT 1",
    "UPDATE rk_task SET identity = '[]'",
    "DELETE FROM rk_task WHERE uid = 'uid-1'",
    "UPDATE rk_checkpoint SET digest = '../x'",
    "UPDATE rk_checkpoint SET uid = 'uid-9' WHERE id = 1",
    "UPDATE rk_checkpoint SET epochs = 1 << 40 WHERE id = 1",
    "UPDATE rk_checkpoint SET manifest = (SELECT manifest FROM rk_checkpoint WHERE id = 2) WHERE id = 1",
    "UPDATE rk_checkpoint SET manifest = 1 << 40",
    'UPDATE rk_metric SET data = \'{"return": "x"}\'',
    "INSERT INTO rk_metric VALUES ('uid-9', 1, '{}')",
    "INSERT INTO rk_event VALUES (999, 'uid-9', 1.0, 'x', '{}')",
    "UPDATE rk_event SET data = 'x'",
    "UPDATE rk_event SET kind = ''",
    "UPDATE rk_blob SET data = x'00' WHERE digest = (SELECT min(digest) FROM rk_blob)",
    "UPDATE rk_blob SET data = (SELECT data FROM rk_blob ORDER BY digest DESC) WHERE digest < 'f'",
    "UPDATE rk_blob SET data = 1 << 40",
    "UPDATE rk_blob SET size = 1 << 40",
    f"INSERT INTO rk_blob VALUES ('{hashlib.sha256(b'').hexdigest()}', 0, x'')",
    "DELETE FROM rk_blob WHERE digest = (SELECT min(digest) FROM rk_blob)",
    "DELETE FROM rk_checkpoint_blob WHERE checkpoint = 1",
    "DELETE FROM rk_study",
    "INSERT INTO rk_study (name, config, created) SELECT 'second', config, created FROM rk_study",
    "UPDATE rk_study SET name = ''",
    "UPDATE rk_study SET config = '[]'",
    "UPDATE rk_schema SET version = 99",
    "DROP TABLE rk_metric",
]


@pytest.mark.parametrize("statement", ROWS, ids=lambda statement: statement[:60])
def test_rows_of_another_form_are_refused(file: Path, empty: Store, tmp_path: Path, statement: str) -> None:
    refused(empty, tampered(file, tmp_path / "bad", statement))


def test_a_configuration_that_no_study_has_is_refused(file: Path, empty: Store, tmp_path: Path) -> None:
    config = json.dumps({**sample.CONFIG, "trials": [10**12]})
    with pytest.raises(StoreError, match="trials is"):
        import_study(empty, tampered(file, tmp_path / "bad", f"UPDATE rk_study SET config = '{config}'"))
    assert (empty.studies(), empty.tasks()) == ([], [])


# Configurations and environments


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": [1, 10, 0]},
        {"epochs": [1, 10, -2]},
        {"epochs": [1, 10**7, 1]},
        {"epochs": [1, 10**18, 2]},
        {"epochs": [10, 1, 3]},
        {"epochs": [1]},
        {"epochs": "123"},
        {"epochs": None},
        {"trials": [10**12]},
        {"trials": []},
        {"trials": [8, 4]},
        {"trials": 8},
        {"generation": 0},
        {"generation": 0.5},
        {"cohort": True},
        {"seed": -1},
        {"seed": 2**70},
        {"space": []},
        {"space": {"a." * 2000 + "b": "uniform(0, 1)"}},
        {"env": {"kwargs": {}}},
        {"env": "x"},
        {"task": 7},
        {"options": []},
        {"nonsense": 1},
        {"version": 2},
        {"version": None},
        {"version": "x" * 10_000},
    ],
    ids=lambda change: str(change)[:40],
)
def test_configurations_that_no_study_has_are_refused(change: dict[str, Any]) -> None:
    with bounded(), pytest.raises(StoreError) as caught:
        Config.from_json({**sample.CONFIG, **change}, "study")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("form", [[], None, 1, "x", [["version", 1]]])
def test_a_configuration_is_a_dict(form: Any) -> None:
    with pytest.raises(StoreError):
        Config.from_json(form, "study")


@pytest.mark.parametrize(
    "prior",
    [
        "(" * 100_000,
        "-" * 100_000 + "1",
        "__import__('os').system('true')",
        "uniform(0, 1e999)",
        "uniform(*[0]*10**9)",
        "choices(list(range(10**9)))",
        "uniform(0, 10**10**10)",
        "uniform(0, " + "9" * 5000 + ")",
        "\0",
        "",
        None,
        [],
        1.5,
        "choices([])",
        "fidelity(0, 0, 0)",
        "lambda: 1",
        "uniform(0, 1); 2",
    ],
    ids=lambda prior: repr(prior)[:30],
)
def test_priors_are_read_and_never_run(prior: Any) -> None:
    with bounded(), pytest.raises(SpaceError):
        Config(**{**sample.CONFIG, "space": {"x": prior}}).searched.sample(0)


CALLABLES = [
    "subprocess:call",
    "os:system",
    "builtins:exec",
    "timeit:timeit",
    "gymnasium:make",
    "unittest:main",
    "code:interact",
    ".x:Y",
    "gymnasium:Env",
    "builtins:dict",
]


@pytest.mark.parametrize("entry_point", CALLABLES)
def test_a_spec_calls_nothing_but_wrappers(entry_point: str) -> None:
    spec = EnvSpec("CartPole-v1", wrappers=[{"entry_point": entry_point, "kwargs": {}}])
    with bounded(), pytest.raises(EnvSpecError, match=r"derived from|cannot be imported"):
        make_envs(spec, [1], 1)
