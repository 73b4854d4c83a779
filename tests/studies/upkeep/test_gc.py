"""gc: needed checkpoints are kept, by the state of their trials; the others are dropped on request."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import rekindle
import sample_study as sample
import sqlalchemy as sa
from rekindle.studies.cli import main
from rekindle.studies.errors import UnknownStudy
from rekindle.studies.storage.branches import Start
from rekindle.studies.storage.retention import Keep
from rekindle.studies.storage.rows import Trial
from rekindle.studies.storage.sql.schema import blob, segment
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.upkeep.gc import GcRules, gc
from rekindle.studies.upkeep.shrinking import shrink
from rekindle.tasks.checkpoint.state import pack
from rekindle.tasks.checkpoint.storage import Write
from sample_study import filled as filled
from sample_study import filled_url as filled_url
from sample_study import rows, uid
from sample_study import templates as templates

COMPLETE, FAILED, RUNNING, PRUNED = map(uid, range(4))


def epochs(store: Store) -> dict[str, list[int]]:
    return {row.uid: [checkpoint.epochs for checkpoint in store.checkpoints(row.uid)] for row in store.tasks()}


def stored(store: Store) -> int:
    """Bytes of all blobs."""
    return int(rows(store, sa.select(sa.func.coalesce(sa.func.sum(blob.c.size), 0)))[0][0])


def test_a_dry_run_changes_nothing_and_says_what_would_go(filled: Store) -> None:
    before, size = epochs(filled), stored(filled)
    planned = gc(filled)
    assert (epochs(filled), stored(filled)) == (before, size)
    assert {row.uid: list(row.epochs) for row in planned} == {
        COMPLETE: [1],
        FAILED: [1, 2, 3],
        RUNNING: [1],
        PRUNED: [1],
    }
    dropped = gc(filled, dry_run=False)
    assert dropped == planned
    assert sum(row.size for row in dropped) == size - stored(filled)
    assert gc(filled) == []


def test_trials_keep_what_their_state_calls_for(filled: Store) -> None:
    gc(filled, dry_run=False)
    assert epochs(filled) == {COMPLETE: [2, 3], FAILED: [], RUNNING: [2, 3], PRUNED: [2, 3]}  # the second is the best
    gc(filled, GcRules(finished=Keep(latest=1), running=Keep(latest=1)), dry_run=False)
    assert epochs(filled) == {COMPLETE: [3], FAILED: [], RUNNING: [3], PRUNED: [3]}


@pytest.mark.parametrize("options", [{"objectives": {"loss": "minimize"}}, {"constraint": ["loss<=1"]}])
def test_the_best_result_is_that_of_the_study(filled: Store, options: dict[str, Any]) -> None:
    filled.change_study(sample.NAME, lambda form: {**form, "options": options})
    for rung, values in enumerate(({"return": 4.0, "loss": 2.0}, {"return": 3.0, "loss": 0.5})):
        score = -values["loss"] if "objectives" in options else values["return"]
        columns = {"objectives": values, "score": score}
        sample.execute(
            filled, segment.update().where(segment.c.rung == rung, segment.c.state == "done").values(columns)
        )
    gc(filled, dry_run=False)
    assert epochs(filled) == {COMPLETE: [3], FAILED: [], RUNNING: [2, 3], PRUNED: [3]}


def test_gc_numbers_trials_with_several_seeds_as_the_command_trials_does(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        rekindle.tune("surrogate", study="s", trials=2, seeds=2, epochs=1, storage=store, progress=False)
        numbers = sorted(number for row in gc(store, GcRules(finished=None)) for _, number, _ in row.trials)
    assert numbers == [0, 0, 1, 1]


@sample.on_sqlite
def test_gc_leaves_a_sound_database_with_metrics_and_events(filled: Store) -> None:
    gc(filled, dry_run=False)
    assert check(filled) == []
    assert [epoch for epoch, _ in filled.metrics(FAILED)] == [1, 2, 3]
    assert filled.tasks([FAILED])[0].epochs == 0
    [event] = [event for event in filled.events(FAILED) if event.kind == "collected"]
    assert event.data["epochs"] == [1, 2, 3]
    saved = filled.load(COMPLETE)
    assert saved is not None
    assert saved.digest == pack(sample.state(0, 3)).digest


def test_shared_checkpoints_stay_as_long_as_one_trial_needs_them(filled: Store) -> None:
    filled.change_study("other", lambda _: {**sample.CONFIG, "seed": 1})
    filled.add_rows("other", trials=[Trial(0, FAILED, {})])
    gc(filled, dry_run=False)
    assert epochs(filled)[FAILED] == [2, 3]


@sample.on_sqlite
def test_a_blob_that_others_name_is_neither_counted_nor_dropped(filled: Store) -> None:
    with filled.open("twin", {"twin": True}) as lease:
        sample.save(filled, lease, 1, 3)  # the same state as that of the failed trial
    [failed] = [removal for removal in gc(filled) if removal.uid == FAILED]
    size = stored(filled)
    gc(filled, dry_run=False)
    assert filled.load("twin") is not None
    assert check(filled) == []
    [alone] = {row.size for row in rows(filled, sa.select(blob.c.size).limit(1))}
    assert failed.size == 2 * alone
    assert size - stored(filled) == 5 * alone


def test_the_state_that_a_branch_starts_from_is_kept(filled: Store) -> None:
    [_, second, _] = filled.checkpoints(FAILED)
    assert filled.branch("branch", {"start": second.digest}, Start(FAILED, 2, second.digest))
    gc(filled, dry_run=False)
    assert epochs(filled)[FAILED] == [2]
    assert epochs(filled)["branch"] == [2]
    assert check(filled) == []


def test_leases_of_a_living_process_are_left_alone(filled: Store) -> None:
    sample.hold(filled, FAILED, "elsewhere:boot:1:1", 60)
    assert FAILED not in {row.uid for row in gc(filled, dry_run=False)}
    assert epochs(filled)[FAILED] == [1, 2, 3]


@sample.on_sqlite
def test_tasks_of_no_study_are_left_alone(filled: Store) -> None:
    with filled.open("free", {"free": True}) as lease:
        for epoch in (1, 2, 3):
            sample.save(filled, lease, 7, epoch)
    gc(filled, dry_run=False)
    assert epochs(filled)["free"] == [1, 2, 3]


@sample.on_sqlite
def test_one_study_may_be_cleaned_by_itself(filled: Store) -> None:
    filled.change_study("other", lambda _: {**sample.CONFIG, "seed": 1})
    assert gc(filled, studies=["other"]) == []
    assert len(gc(filled, studies=[sample.NAME])) == 4
    with pytest.raises(UnknownStudy, match="'other', 'study'"):
        gc(filled, studies=["typo"])


@sample.on_sqlite
def test_a_state_that_was_dropped_is_trained_again(filled: Store) -> None:
    gc(filled, dry_run=False)
    with filled.open(FAILED, {"task": "ppo", "number": 1}) as lease:
        assert lease.load() is None
        sample.save(filled, lease, 1, 1)
    assert check(filled) == []


@sample.on_sqlite
def test_the_command_lists_first_and_drops_with_yes(filled_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> Any:
        assert main(["gc", "--storage", filled_url, *words]) == 0
        return capsys.readouterr().out

    listed = json.loads(run("--json"))
    assert (listed["dry_run"], listed["checkpoints"], len(listed["tasks"])) == (True, 6, 4)
    assert "--yes drops them" in run()
    assert json.loads(run("--json", "--yes"))["bytes"] == listed["bytes"] > 0
    assert "0 checkpoints of 0 tasks" in run()


def bulky(store: Store, number: int = 12) -> None:
    """Checkpoints of a failed trial, a quarter of a megabyte each."""
    with store.open(FAILED, {"task": "ppo", "number": 1}) as lease:
        for epoch in range(4, 4 + number):
            content = os.urandom(1 << 18)
            name = hashlib.sha256(content).hexdigest()
            store.save([Write(lease, epoch, b"%d" % epoch, {name: content}, keep=Keep(latest=None))])


@pytest.mark.slow
@sample.on_sqlite
def test_a_sqlite_file_becomes_as_small_as_what_it_holds(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    bulky(filled)
    path = Path(filled.url.removeprefix("sqlite:///"))
    assert main(["gc", "--storage", filled.url, "--yes", "--json"]) == 0
    file = json.loads(capsys.readouterr().out)["file"]
    assert file["before"] > 12 << 18
    assert file["after"] == path.stat().st_size < 1 << 18
    assert "free pages given back" in file["how"]
    assert check(filled) == []
    again = shrink(filled)
    assert again is not None
    assert (again.before, again.how) == (again.after, "nothing in it is free")


def test_a_server_gives_space_back_by_itself(postgres_url: str) -> None:
    with Store(postgres_url) as store:
        assert shrink(store) is None


def test_a_file_of_an_earlier_version_is_written_anew_once(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with Store(sqlite_url) as store:
        sample.fill(store)
        bulky(store, 8)
        gc(store, dry_run=False)
        first = shrink(store)
        assert first is not None
        assert first.how == "rewritten; from now on space is given back without rewriting"
        assert first.before > 8 << 18 > first.after
        bulky(store, 8)
        gc(store, dry_run=False)
        second = shrink(store)
        assert second is not None
        assert "free pages given back" in second.how
        assert check(store) == []


def test_a_file_that_others_write_is_shrunk_another_time(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.studies.storage.sql.database.BUSY_SECONDS", 0.05)
    with Store(sqlite_url) as store:
        sample.fill(store)
        bulky(store, 8)
        gc(store, dry_run=False)
        other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        shrunk = shrink(store)
        assert shrunk is not None
        assert "the database was busy" in shrunk.how
        other.close()
        shrunk = shrink(store)
        assert shrunk is not None
        assert shrunk.after < 8 << 18
