"""The planning lock: one process creates trials at a time, and nobody waits for a dead or slow one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.storage.locks import planning_lock
from rekindle.studies.storage.sql.schema import study
from rekindle.studies.storage.store import Store
from studying import tiny

TAKES = """
import sys
from rekindle.studies.storage.store import Store
with Store(sys.argv[1], lease_seconds=float(sys.argv[2])) as store:
    print(store.acquire_planning("s", store.changes("s").revision), flush=True)
    sys.stdin.readline()
"""


def test_trials_are_made_by_one_process_while_the_others_wait(url: str, child: Callable[..., Any]) -> None:
    with Store(url) as store:
        start_study(store, "s", tiny())
        other = child(TAKES, url, 60)
        assert other.hear() == "True"
        engine = StudyRunner(store, "s")
        assert engine.advance() == []
        assert not engine.complete
        other.process.kill()
        other.process.wait()
        assert engine.advance(), "nobody waits for the dead"


def test_a_turn_that_takes_too_long_is_over(url: str, child: Callable[..., Any]) -> None:
    with Store(url) as store:
        start_study(store, "s", tiny())
        other = child(TAKES, url, 1e-6)
        assert other.hear() == "True"
        assert StudyRunner(store, "s").advance(), "the other one lives, but its turn does not"


def test_a_planner_that_is_killed_elsewhere_is_waited_for_for_seconds(url: str, child: Callable[..., Any]) -> None:
    elsewhere = "from rekindle.studies.storage.locks import owner\nowner.socket.gethostname = lambda: 'elsewhere'\n"
    with Store(url) as store:
        start_study(store, "s", tiny())
        other = child(elsewhere + TAKES, url, 60)
        assert other.hear() == "True"
        other.process.kill()
        other.process.wait()
        engine, limit = StudyRunner(store, "s"), planning_lock.SECONDS
        assert engine.advance() == [], "nobody here sees that it is dead"
        [left] = store.database.read(lambda c: c.execute(sa.select(planning_lock._LEFT))).all()[0]
        assert left <= limit < 60
        passes = study.update().values(planner_until=study.c.planner_until - limit)
        store.database.write(lambda c: c.execute(passes))
        assert engine.advance()


def test_a_clock_that_was_set_back_holds_nobody_up(url: str, child: Callable[..., Any]) -> None:
    with Store(url) as store:
        start_study(store, "s", tiny())
        other = child(TAKES, url, 60)
        assert other.hear() == "True"
        engine = StudyRunner(store, "s")
        assert engine.advance() == []
        store.database.write(lambda c: c.execute(study.update().values(planner_until=study.c.planner_until + 3600)))
        assert engine.advance()


def test_a_planner_that_gets_on_keeps_its_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning_lock, "SECONDS", 1e-9)
    start_study(store, "s", tiny())
    ends: list[float] = []

    def forgets_its_turn() -> bool:
        ends.extend(store.database.read(lambda c: c.execute(sa.select(study.c.planner_until))).scalars().all())
        store.database.write(lambda c: c.execute(study.update().values(planner_until=0.0)))
        return False

    engine = StudyRunner(store, "s")
    engine.stop = forgets_its_turn
    assert engine.advance()
    assert len(ends) > 3
    assert all(ends[1:]), "between any two trials it is renewed"


def test_a_turn_ends_with_the_trials_that_it_was_for(store: Store) -> None:
    start_study(store, "s", tiny())
    assert StudyRunner(store, "s").advance()
    row = store.database.read(lambda c: c.exec_driver_sql("SELECT planner, planner_until FROM rk_study").one())
    assert tuple(row) == (None, None)


def test_a_turn_is_not_taken_for_what_is_past(store: Store) -> None:
    start_study(store, "s", tiny())
    engine = StudyRunner(store, "s")
    assert engine.advance()
    assert not store.acquire_planning("s", engine.rows.revision - 1)
    assert store.acquire_planning("s", engine.rows.revision)
    assert store.acquire_planning("s", engine.rows.revision), "it is this process that has it"
