"""Export and import: round trips between databases, repeated imports, and nothing beyond the exported study."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rekindle
import sample_study as sample
import sqlalchemy as sa
from rekindle.studies.cli import main
from rekindle.studies.errors import (
    DamagedCheckpoint,
    IdentityMismatch,
    StoreError,
    StoreFull,
    StudyMismatch,
    TaskBusy,
    UnknownStudy,
)
from rekindle.studies.storage.branches import Start
from rekindle.studies.storage.rows import Trial
from rekindle.studies.storage.sql.schema import blob, event, segment, study, task, trial
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.exporting import export_study
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.upkeep.gc import gc
from rekindle.studies.upkeep.importing import BadArchive, import_study
from rekindle.tasks.checkpoint.storage import Write
from sample_study import execute, rows, uid
from sample_study import filled as filled
from sample_study import filled_url as filled_url
from sample_study import templates as templates


@pytest.fixture(scope="module")
def file(templates: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, exported."""
    path = tmp_path_factory.mktemp("exported") / "study.rekindle"
    with Store(templates["sqlite"], keep=sample.ALL) as store:
        export_study(store, sample.NAME, path)
    return path


def test_a_confirmation_of_an_imported_study_has_other_seeds(tmp_path: Path) -> None:
    """Confirmations stay behind, and what they said may be why the study was taken elsewhere."""

    def confirmed(study: rekindle.Study) -> set[int]:
        name = study.confirm(top=1, seeds=3, progress=False)["confirmation"]
        return {trial.attrs["seed"] for trial in study.store.trials(name)}

    with Store(f"sqlite:///{tmp_path}/here.db") as here, Store(f"sqlite:///{tmp_path}/there.db") as there:
        study = rekindle.tune(
            "surrogate", storage=here, study="s", epochs=1, trials=2, scheduler="none", progress=False
        )
        export_study(here, "s", tmp_path / "before.rekindle")
        first = confirmed(study)
        export_study(here, "s", tmp_path / "after.rekindle")
        for name in ("before", "after", "before"):
            import_study(there, tmp_path / f"{name}.rekindle")
        second = confirmed(rekindle.Study("s", there))
        assert (len(first), len(second), first & second) == (6, 6, set())
        import_study(here, tmp_path / "after.rekindle")
        assert confirmed(study) == first


# From one kind of database to the other, both ways.
across = pytest.mark.parametrize(
    ("filled_url", "url"), [("sqlite", "postgresql"), ("postgresql", "sqlite")], indirect=True
)
into_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def content(store: Store) -> Any:
    """All that is stored of a study."""
    uids = [uid(number) for number in range(4)]
    states = {uid: store.load(uid) for uid in uids}
    return (
        store.study(sample.NAME),
        store.trials(sample.NAME),
        store.segments(sample.NAME),
        [(row.uid, row.identity, row.epochs, row.created) for row in store.tasks()],
        {uid: [(row.epochs, row.digest, row.created, row.blobs) for row in store.checkpoints(uid)] for uid in uids},
        json.dumps({uid: store.metrics(uid) for uid in uids}),  # NaN is not itself
        {uid: store.events(uid) for uid in uids},
        store.events_of_study(sample.NAME),
        store.saved_last(sample.NAME),
        {
            key: saved and {name: saved.fetch(name) for name in store.checkpoints(key)[-1].blobs}
            for key, saved in states.items()
        },
    )


@across
def test_a_study_is_the_same_there_and_back(filled: Store, store: Store, tmp_path: Path) -> None:
    export_study(filled, sample.NAME, tmp_path / "own.rekindle")
    done = import_study(store, tmp_path / "own.rekindle")
    assert (done.study, done.trials, done.tasks, done.checkpoints, done.new) == (sample.NAME, 4, 4, 12, 12)
    assert content(store) == content(filled)
    assert [*store.study(sample.NAME).config["space"]] == ["lr", "clip"]  # suggestions depend on the order
    assert check(store) == []


@across
def test_an_imported_study_has_spent_the_time_of_the_exported_one(filled: Store, store: Store, tmp_path: Path) -> None:
    """Else a study with a budget of hours would have all of them again."""
    seconds = {uid(number): 10.0 + number for number in range(4)}
    for name, trained in seconds.items():
        execute(filled, task.update().where(task.c.uid == name).values(trained=trained))
    export_study(filled, sample.NAME, tmp_path / "own.rekindle")
    for _ in range(2):
        import_study(store, tmp_path / "own.rekindle")
        assert store.trained_for([*seconds]) == seconds


@across
def test_equal_content_is_equal_bytes(filled: Store, store: Store, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    export_study(filled, sample.NAME, paths[0])
    export_study(filled, sample.NAME, paths[1])
    import_study(store, paths[0])
    export_study(store, sample.NAME, paths[2])  # from another database, maybe of another kind
    assert len({path.read_bytes() for path in paths}) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".part") == []


def test_importing_twice_is_importing_once(store: Store, file: Path) -> None:
    import_study(store, file)
    before = content(store)
    assert import_study(store, file).new == 0
    assert content(store) == before
    assert check(store) == []


def test_an_import_restores_dropped_checkpoints(filled: Store, file: Path) -> None:
    gc(filled, dry_run=False)
    assert import_study(filled, file).new == 3  # the failed trial's; the others' later ones are still there
    assert check(filled) == []


def test_an_import_adds_what_a_task_of_the_database_lacks(filled: Store, store: Store, tmp_path: Path) -> None:
    """It was trained here for an epoch; the file's later states have events of their own, as branches and labels."""
    with store.open(uid(0), {"task": "ppo", "number": 0}) as lease:
        store.save([Write(lease, 1, metrics=[(1, {"loss": 0.5})], events=[("mark", {"at": 0})])])
    [_, second, _] = filled.checkpoints(uid(0))
    filled.branch("branch", {"start": second.digest}, Start(uid(0), 2, second.digest))
    export_study(filled, sample.NAME, tmp_path / "own.rekindle")
    here, there = store.events(uid(0)), filled.events(uid(0))
    for _ in range(2):
        import_study(store, tmp_path / "own.rekindle")
        events = store.events(uid(0))
        assert sorted(events, key=repr) == sorted([*here, *there], key=repr)
        assert [event.created for event in events] == sorted(event.created for event in events)
        assert store.metrics(uid(0))[0][1] == {"loss": 0.5, "return": 1.0}
    gc(store, dry_run=False)
    assert [row.epochs for row in store.checkpoints(uid(0))] == [2, 3]  # a branch starts from the one at 2 epochs
    with store.open(uid(0), None) as lease:
        assert lease.token > max(event.token for event in there)


@into_sqlite
def test_an_import_that_was_interrupted_is_run_again(store: Store, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.studies.upkeep import importing

    real = importing._task

    def interrupted(connection: Any, rows: Any, **more: Any) -> int:
        if rows[task][0]["uid"] == uid(2):
            raise KeyboardInterrupt
        return real(connection, rows=rows, **more)

    with monkeypatch.context() as patched:
        patched.setattr(importing, "_task", interrupted)
        with pytest.raises(KeyboardInterrupt):
            import_study(store, file)
    assert store.studies() == []
    assert check(store) == []
    assert import_study(store, file).new == 6
    assert check(store) == []


CHANGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: trial.update().where(trial.c.number == 2).values(params={"lr": 1}), "trial 2 differs in params"),
    (lambda: trial.delete().where(trial.c.number == 9), "trial 9 is only in the database"),
    (lambda: segment.update().where(segment.c.number == 0).values(score=0.5), "segment 0 of trial 0 differs in score"),
    (lambda: study.update().values(config={**sample.CONFIG, "seed": 1}), "config differs in seed"),
]


@sample.on_sqlite
@pytest.mark.parametrize(("change", "message"), CHANGES, ids=[message for _, message in CHANGES])
def test_a_study_of_other_content_is_refused_by_what_differs(
    filled: Store, file: Path, change: Callable[[], Any], message: str
) -> None:
    if "only in" in message:
        filled.add_rows(sample.NAME, trials=[Trial(9, "nine", {})])
    else:
        execute(filled, change())
    before = content(filled)
    with pytest.raises(StudyMismatch, match=message):
        import_study(filled, file)
    assert content(filled) == before


@into_sqlite
def test_a_task_of_another_identity_is_refused(store: Store, file: Path) -> None:
    store.open(uid(0), {"task": "other"}).release()
    with pytest.raises(IdentityMismatch, match="another identity"):
        import_study(store, file)
    assert store.studies() == []


@into_sqlite
def test_a_task_with_another_state_is_refused(store: Store, file: Path) -> None:
    with store.open(uid(1), {"task": "ppo", "number": 1}) as lease:
        sample.save(store, lease, 5, 2)
    with pytest.raises(StudyMismatch, match="after 2 epochs task uid-1 has the digest"):
        import_study(store, file)


def test_a_task_that_is_being_trained_is_left_to_its_process(store: Store, file: Path) -> None:
    store.open(uid(3), {"task": "ppo", "number": 3}).release()
    sample.hold(store, uid(3), "elsewhere:boot:17:1", 60)
    with pytest.raises(TaskBusy, match="17 on elsewhere"):
        import_study(store, file)


@sample.on_sqlite
def test_a_damaged_study_is_not_exported(filled: Store, tmp_path: Path) -> None:
    name = next(iter(filled.checkpoints(uid(0))[-1].blobs))
    execute(filled, blob.update().where(blob.c.digest == name).values(data=b"no"))
    with pytest.raises(DamagedCheckpoint, match="fsck --repair"):
        export_study(filled, sample.NAME, tmp_path / "study.rekindle")
    assert [path.name for path in tmp_path.iterdir() if "rekindle" in path.name] == []


@sample.on_sqlite
def test_an_export_that_is_impossible_is_refused(filled: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownStudy, match="'study'"):
        export_study(filled, "typo", tmp_path / "study.rekindle")
    with pytest.raises(StoreError, match="directory that exists and is writable"):
        export_study(filled, sample.NAME, tmp_path / "nowhere" / "study.rekindle")


@sample.on_sqlite
def test_a_file_that_cannot_be_written_says_why_and_leaves_no_part_of_it(
    filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"cannot write .*folder: Is a directory; name a file in a directory that"):
        export_study(filled, sample.NAME, tmp_path / "folder")
    long = tmp_path / ("ä" * 120)
    export_study(filled, sample.NAME, long)
    assert len(long.name.encode()) == 240
    long.unlink()

    for error in (
        OSError(errno.ENOSPC, "No space left on device"),
        sqlite3.OperationalError("database or disk is full"),
    ):
        setattr(error, "sqlite_errorname", "SQLITE_FULL")  # noqa: B010 - only sqlite3's errors declare it

        def full(*arguments: Any, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("rekindle.studies.upkeep.exporting._write", full)
            with pytest.raises(
                StoreFull, match=rf"no room to write .*: {error.args[-1]}; free some space in {tmp_path}"
            ):
                export_study(filled, sample.NAME, tmp_path / "study.rekindle")
    assert [path.name for path in tmp_path.iterdir() if "filled.db" not in path.name] == ["folder"]


def test_an_import_without_room_for_its_copy_says_where(
    store: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(StoreFull, match=rf"no room for one in {tempfile.gettempdir()}; .*TMPDIR"):
        import_study(store, file)


@sample.on_sqlite
def test_passwords_are_not_exported(filled: Store, tmp_path: Path) -> None:
    url = "postgresql://me:hunter2@host/db"
    execute(filled, trial.update().where(trial.c.number == 1).values(error=f"cannot reach {url}"))
    execute(filled, event.insert().values(uid=uid(0), created=1.0, kind="note", data={"said": [f"at {url}"]}))
    export_study(filled, sample.NAME, tmp_path / "study.rekindle")
    assert b"hunter2" not in (tmp_path / "study.rekindle").read_bytes()
    assert b"me:***@host" in (tmp_path / "study.rekindle").read_bytes()
    execute(filled, task.update().where(task.c.uid == uid(0)).values(identity={"env": {"kwargs": {"db": url}}}))
    with pytest.raises(StoreError, match="holds no password") as caught:
        export_study(filled, sample.NAME, tmp_path / "other.rekindle")
    assert "hunter2" not in str(caught.value)


@sample.on_sqlite
def test_the_file_is_a_database_with_one_study(filled: Store, tmp_path: Path) -> None:
    filled.change_study("another", lambda config: sample.CONFIG)
    path = tmp_path / "study.rekindle"
    export_study(filled, sample.NAME, path)
    data = path.read_bytes()
    assert hashlib.sha256(data[:-32]).digest() == data[-32:]
    with contextlib.closing(sqlite3.connect(path)) as opened:
        assert opened.execute("SELECT name FROM rk_study").fetchall() == [(sample.NAME,)]
        assert opened.execute("SELECT count(*) FROM rk_blob").fetchall() == [(12,)]
        assert opened.execute("SELECT count(*) FROM rk_task WHERE lease_owner IS NOT NULL").fetchall() == [(0,)]
    with Store(f"sqlite:///{path}") as store:
        assert [row.number for row in store.trials(sample.NAME)] == [0, 1, 2, 3]
        assert check(store) == []


@into_sqlite
def test_a_file_of_the_format_before_is_refused_with_the_version_that_reads_it(store: Store, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "old.rekindle", "w") as old:
        old.writestr("study.json", "{}")
    with pytest.raises(BadArchive, match="at 9f8a843, its last version with zips"):
        import_study(store, tmp_path / "old.rekindle")


def test_the_commands_export_and_import(
    filled_url: str, sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "study.rekindle")
    assert main(["export", sample.NAME, path, "--storage", filled_url, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["trials"], written["bytes"]) == (4, Path(path).stat().st_size)
    assert main(["import", path, "--storage", sqlite_url]) == 0
    assert "4 trials, 4 tasks, 12 checkpoints (12 of them new)" in capsys.readouterr().out
    assert main(["fsck", "--storage", sqlite_url]) == 0
    assert "is sound" in capsys.readouterr().out
    assert main(["import", str(tmp_path / "none"), "--storage", sqlite_url]) == 2
    with Store(sqlite_url) as store:
        execute(store, trial.update().values(params={}))
    assert main(["import", path, "--storage", sqlite_url]) == 2
    assert "differs in params" in capsys.readouterr().err


@sample.on_sqlite
def test_fsck_says_what_it_finds_and_repairs_when_told(filled_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store(filled_url) as store:
        execute(store, task.update().where(task.c.uid == uid(0)).values(epochs=1))
    assert main(["fsck", "--storage", filled_url]) == 1
    assert "with --repair repairs" in capsys.readouterr().out
    assert main(["fsck", "--storage", filled_url, "--repair", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [finding["kind"] for finding in output["findings"]] == ["task-epochs"]
    assert [repair["done"] for repair in output["repairs"]] == [True]
    assert output["left"] == []
    with Store(filled_url) as store:
        assert rows(store, sa.select(task.c.epochs).where(task.c.uid == uid(0)))[0][0] == 3
