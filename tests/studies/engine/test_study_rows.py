"""A process's view of a study: only changed rows are read, and none is missed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.snapshots import StudyProgress, look
from rekindle.studies.engine.study_rows import StudyRows
from rekindle.studies.errors import StudyMismatch, StudyReplaced, UnknownStudy
from rekindle.studies.schedulers.seeds import seed_options
from rekindle.studies.storage import commands as command_rows
from rekindle.studies.storage import studies as study_rows
from rekindle.studies.storage import tasks as task_rows
from rekindle.studies.storage.rows import Result, Segment, Trial
from rekindle.studies.storage.sql.schema import metadata
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep import fsck
from rekindle.studies.upkeep.deleting import delete
from studying import sqlite_first, tiny


@pytest.fixture
def other(url: str, store: Store) -> Iterator[Store]:
    """A second process's store on the same database."""
    with Store(url) as other:
        yield other


def rows(number: int) -> tuple[Trial, Segment]:
    return Trial(number, f"u{number}", {"gamma": 0.9}, {"bracket": 0}), Segment(number, 0, 1)


def finish(store: Store, number: int, rung: int = 0, uid: str | None = None, score: float | None = None) -> None:
    with store.open(uid or f"u{number}", {}) as lease:
        store.finish_segments("s", [Result(lease, number, rung, number if score is None else score, digest="d")])


def test_a_study_in_which_nothing_has_happened_is_one_small_query(store: Store, other: Store) -> None:
    start_study(store, "s", tiny())
    view = StudyRows(other, "s")
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    sa.event.listen(other.database.engine, "before_cursor_execute", note)
    assert view.refresh() is None
    read = [statement for statement in statements if "rk_" in statement]
    assert len(read) == 1
    assert "config" not in read[0]


def test_only_changed_rows_are_read_and_only_once(store: Store, other: Store) -> None:
    start_study(store, "s", tiny(trials=9))
    view = StudyRows(other, "s")
    pairs = [rows(number) for number in range(9)]
    store.add_rows("s", trials=[trial for trial, _ in pairs], segments=[segment for _, segment in pairs])
    changes = view.refresh()
    assert changes is not None
    assert (len(changes.trials), len(changes.segments), len(view.ready)) == (9, 9, 9)
    finish(store, 4)
    store.add_rows("s", finished=[(7, "pruned")])
    changes = view.refresh()
    assert changes is not None
    assert [(row.number, row.score) for row in changes.segments] == [(4, 4.0)]
    assert [(row.number, row.state) for row in changes.trials] == [(7, "pruned")]
    assert view.refresh() is None
    assert (4, 0) not in view.ready


@sqlite_first
def test_a_whole_study_reads_each_row_as_often_as_it_was_written(store: Store, other: Store) -> None:
    start_study(store, "s", tiny(trials=24, sampler="random"))
    view, engine, read = StudyRows(other, "s"), StudyRunner(store, "s"), 0
    while True:
        ready = engine.advance()
        changes = view.refresh()
        read += len(changes.trials) + len(changes.segments) if changes else 0
        if engine.complete:
            break
        for item in ready[:3]:
            finish(store, item.segment.number, item.segment.rung, item.trial.uid)
    assert view.trials == {trial.number: trial for trial in store.trials("s")}
    assert view.segments == {(row.number, row.rung): row for row in store.segments("s")}
    assert view.plan().complete
    assert read <= 2 * (len(view.trials) + len(view.segments))


def test_of_many_writers_at_once_no_row_is_missed(url: str) -> None:
    with Store(url) as store:
        start_study(store, "s", tiny(trials=200))
    writers, trials_each = 4, 6

    def write(place: int) -> None:
        with Store(url) as mine:
            for number in range(place, writers * trials_each, writers):
                trial, segment = rows(number)
                mine.add_rows("s", trials=[trial], segments=[segment])
                finish(mine, number)
                mine.add_rows("s", finished=[(number, "complete")])

    threads = [threading.Thread(target=write, args=(place,)) for place in range(writers)]
    with Store(url) as store:
        view = StudyRows(store, "s")
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            view.refresh()
        view.refresh()
        assert view.trials == {trial.number: trial for trial in store.trials("s")}
        assert view.segments == {(row.number, row.rung): row for row in store.segments("s")}
        assert {trial.state for trial in view.trials.values()} == {"complete"}
        assert len(view.trials) == writers * trials_each
        assert view.ready == set()


def test_an_extended_study_is_planned_again(store: Store, other: Store) -> None:
    config = tiny(trials=4, epochs=(1, 1), sampler="random")
    start_study(store, "s", config)
    engine = StudyRunner(other, "s")
    for item in engine.advance():
        finish(store, item.segment.number, item.segment.rung, item.trial.uid)
    assert engine.advance() == []
    assert engine.complete
    start_study(store, "s", replace(config, trials=[6]))
    assert [item.segment.number for item in engine.advance()] == [4, 5]
    assert engine.config.trials == [4, 6]


def test_that_rows_were_taken_away_is_seen(store: Store, other: Store) -> None:
    start_study(store, "s", tiny())
    pairs = [rows(number) for number in range(3)]
    store.add_rows("s", trials=[trial for trial, _ in pairs], segments=[segment for _, segment in pairs])
    view, watch = StudyRows(other, "s"), StudyProgress(other, "s")
    store.add_rows("s", finished=[(1, "pruned")])
    view.refresh()
    assert (1, 0) in view.ready
    [finding] = [row for row in fsck.check(store) if row.kind == "segment-open"]
    [repair] = fsck.repair(store, [finding])
    assert repair.done
    view.refresh()
    assert (view.ready, view.segments.keys()) == ({(0, 0), (2, 0)}, {(0, 0), (2, 0)})
    store.database.write(lambda c: study_rows.revise(c, "s", rewrite=True))
    store.database.write(lambda c: c.execute(metadata.tables["rk_segment"].delete()))
    changes = view.refresh()
    assert changes is not None
    assert changes.whole
    assert (view.segments, view.ready) == ({}, set())
    assert watch.look().rungs == look(store, "s").rungs


def test_a_study_that_was_made_anew_is_not_taken_for_the_one_before(store: Store, other: Store) -> None:
    start_study(store, "s", tiny())
    view = StudyRows(other, "s")
    assert delete(store, "s", dry_run=False).study == "s"
    with pytest.raises(UnknownStudy, match="no study 's'"):
        view.refresh()
    start_study(store, "s", tiny(seed=1))
    assert store.study("s").created != view.created
    with pytest.raises(StudyReplaced, match="study 's' was deleted, and another one has its name now"):
        view.refresh()
    assert StudyRows(other, "s").config.seed == 1


def test_commands_and_rows_are_of_one_moment(store: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that knows a command passes, so it has to know the rows, too, that the command changed."""
    start_study(store, "s", tiny())
    trial, segment = rows(0)
    store.add_rows("s", trials=[trial], segments=[segment])
    view, read = StudyRows(other, "s"), command_rows.commands
    store.add_rows("s", trials=[rows(1)[0]])

    def cancelled_first(connection: sa.Connection, name: str) -> Any:
        monkeypatch.undo()
        store.command(lambda c: command_rows.cancel(c, "s", [0], "someone", ""))
        return read(connection, name)

    monkeypatch.setattr(command_rows, "commands", cancelled_first)
    monkeypatch.setattr(Store, "commands", lambda store, name: store.database.read(lambda c: cancelled_first(c, name)))
    view.refresh()
    assert (len(view.commands), view.trials[0].state) == (0, "running")
    view.refresh()
    assert (len(view.commands), view.trials[0].state) == (1, "cancelled")


def test_a_plan_that_holds_only_as_long_as_nothing_changes_is_dropped_if_something_has(store: Store) -> None:
    start_study(store, "s", tiny())
    view = StudyRows(store, "s")
    trial, segment = rows(0)
    assert store.add_rows("s", trials=[trial], segments=[segment], after=view.revision)
    assert not store.add_rows("s", finished=[(0, "pruned")], after=view.revision)
    assert store.trials("s")[0].state == "running"
    view.refresh()
    assert store.add_rows("s", finished=[(0, "pruned")], after=view.revision)


def test_added_rows_appear_together_or_not_at_all(store: Store) -> None:
    start_study(store, "s", tiny())
    trial, segment = rows(0)
    with pytest.raises(Exception, match="trial 5 of study 's' cannot be finished"):
        store.add_rows("s", trials=[trial], segments=[segment], finished=[(5, "pruned")])
    assert (store.trials("s"), store.segments("s")) == ([], [])
    with pytest.raises(UnknownStudy, match="no study 't'"):
        store.add_rows("t", trials=[trial])
    with pytest.raises(UnknownStudy, match="no study 't'"):
        StudyRows(store, "t")


def test_a_change_of_a_configuration_that_is_refused_changes_nothing(store: Store) -> None:
    config = start_study(store, "s", tiny())
    before = StudyRows(store, "s").revision

    def refuse(stored: Any) -> Any:
        raise StudyMismatch("no")

    with pytest.raises(StudyMismatch, match="no"):
        store.change_study("s", refuse)
    assert start_study(store, "s", config) == config
    assert StudyRows(store, "s").revision == before


def test_frequent_queries_use_indexes(sqlite_url: str) -> None:
    """Of SQLite, whose plans do not depend on how many rows there are."""
    asked: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        asked.append((statement, parameters))

    with Store(sqlite_url) as store:
        start_study(store, "s", tiny())
        store.add_rows("s", trials=[rows(0)[0]])
        sa.event.listen(store.database.engine, "before_cursor_execute", note)
        store.database.read(lambda c: study_rows.changes(c, "s", 0))
        store.database.read(task_rows.holders)
        store.reached(["a", "b"])
        store.in_training("s")
        sa.event.remove(store.database.engine, "before_cursor_execute", note)
        looks = [(statement, parameters) for statement, parameters in asked if statement.startswith("SELECT")]
        assert len(looks) == 7
        for statement, parameters in looks:
            steps = store.database.read(
                lambda c, s=statement, p=parameters: c.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", p).all()
            )
            assert not [step[3] for step in steps if step[3].startswith("SCAN")], statement


@sqlite_first
@pytest.mark.parametrize(
    ("scheduler", "seeds"), [("halving", 1), ("hyperband", 1), ("asha", 1), ("none", 1), ("halving", 4)]
)
def test_a_watch_shows_what_a_first_look_shows(store: Store, other: Store, scheduler: str, seeds: int) -> None:
    rng = random.Random(1)
    races = seed_options(seeds, "mean", racing=True) if seeds > 1 else {}
    start_study(store, "s", tiny(trials=8, scheduler=scheduler, sampler="random", options=races))
    watch, engine = StudyProgress(other, "s"), StudyRunner(store, "s")
    while True:
        ready = engine.advance()
        seen, fresh = watch.look(), look(store, "s")
        assert replace(seen, when=0.0) == replace(fresh, when=0.0)
        assert sum(seen.counts.values()) == len(seen.last) == 8 * seeds
        if engine.complete:
            break
        for item in rng.sample(ready, min(2, len(ready))):
            score = float(item.trial.number * 7 % 13)  # the best of a race's first seeds may be worse with the next
            finish(store, item.segment.number, item.segment.rung, item.trial.uid, score)
    assert seen.complete
    assert seen.best is not None
