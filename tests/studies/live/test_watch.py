"""`rekindle watch`: workers, curves and failures, from a storage that it may only read."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.cli.commands import watch as command
from rekindle.studies.cli.output.live_progress import Progress
from rekindle.studies.cli.output.watching import picture, sparkline
from rekindle.studies.engine.checked_config import make_config
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.snapshots import look
from rekindle.studies.failures import FAILED
from rekindle.studies.live.views import LiveStudy
from rekindle.studies.report.data import report_view
from rekindle.studies.report.page import page
from rekindle.studies.schedulers.seeds import seed_options
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.rows import Segment
from rekindle.studies.storage.sql.schema import event, metric, task
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rich.console import Console
from sample_study import ALL, NAME, RUNGS, dead_owner, execute, fill, hold, uid
from studying import sqlite_first

Cli = Callable[..., tuple[int, str, str]]
on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
RUNNING = 2  # the trial of the sample study that still runs


@pytest.fixture
def filled(url: str) -> Iterator[Store]:
    with Store(url, keep=ALL) as store:
        fill(store)
        yield store


def train(store: Store, owner: str, seconds: float = 60.0) -> None:
    """Writes down that a process trains the trial that runs, and what happened to it."""
    store.add_rows(NAME, segments=[Segment(RUNNING, 1, RUNGS[1])])
    hold(store, uid(RUNNING), owner, seconds)
    note = {"kind": "memory", "retry": True, "report": "[memory] Traceback\nMemoryError: <b>no room</b>"}
    execute(store, event.insert().values(uid=uid(RUNNING), created=1.7e9, kind=FAILED, data=note))


def read_only(url: str) -> str:
    """The same storage for somebody who may not write."""
    if url.startswith("sqlite"):
        return f"sqlite:///file:{url.removeprefix('sqlite:///')}?mode=ro&uri=true"
    return f"{url}{'&' if '?' in url else '?'}options=-c%20default_transaction_read_only%3Don"


@sqlite_first
def test_a_view_shows_each_workers_trials_and_failures(filled: Store) -> None:
    train(filled, str(Owner.current()))
    with Store(read_only(filled.database.url.render_as_string(hide_password=False))) as store:
        view = LiveStudy(store, NAME).look().to_json()
    me = f"{os.getpid()} on {Owner.current().host}"
    [running], [worker] = view["running"], view["workers"]
    assert view["state"] == "running"
    assert view["counts"] == {"complete": 1, "pruned": 1, "failed": 1, "running": 1}
    assert (running["trial"], running["epochs"], running["target"], running["worker"]) == (RUNNING, 3, RUNGS[1], me)
    assert running["curve"] == [1.0, 4.0, 3.0]  # no episode return is reported, but the objective
    assert worker | {"seconds": 0} == {"name": me, "state": "trains", "trials": [RUNNING], "seconds": 0}
    kinds = [(failure["trial"], failure["kind"], failure["retry"], failure["text"]) for failure in view["failures"]]
    assert kinds == [(RUNNING, "memory", True, "MemoryError: <b>no room</b>")]


@on_sqlite
def test_a_view_shows_the_curves_of_behaviours(filled: Store) -> None:
    train(filled, str(Owner.current()))
    reported = {"episode_return": 5.0, "episode_return.prey": 2.0, "episode_return.predator": 3.0}
    execute(filled, metric.update().values(data=reported))
    live = LiveStudy(filled, NAME)
    view = live.look()
    [running] = view.running
    assert (running.curve, running.curves) == ([5.0] * 3, {"predator": [3.0] * 3, "prey": [2.0] * 3})
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(picture(Progress(console, NAME, ""), view, live.snapshot))
    assert "predator ▁▁▁  prey ▁▁▁" in console.export_text()
    report = report_view(filled, NAME)
    assert [curves.metric for curves in report.of_behaviours] == ["episode_return.predator", "episode_return.prey"]
    assert page([report]).count("learning curves: episode_return.") == 2


@on_sqlite
def test_the_dead_and_the_silent_train_nothing(filled: Store) -> None:
    train(filled, dead_owner())
    study = LiveStudy(filled, NAME)
    assert [worker.state for worker in study.look().workers] == ["died"]
    assert study.look().state == "stalled"
    hold(filled, uid(RUNNING), "elsewhere:boot:7:1", -5.0)
    assert [worker.state for worker in study.look().workers] == ["silent"]


@on_sqlite
def test_a_task_that_another_study_trains_is_not_in_training_here(filled: Store) -> None:
    hold(filled, uid(0), str(Owner.current()), 60.0)  # of a trial that is complete
    view = LiveStudy(filled, NAME).look()
    assert (view.running, view.workers, view.state) == ([], [], "stalled")


@on_sqlite
def test_a_look_reads_only_what_changed(filled: Store) -> None:
    train(filled, str(Owner.current()))
    study, fetched = LiveStudy(filled, NAME), list[str]()
    assert study.look() is not None
    sa.event.listen(sa.Engine, "before_cursor_execute", lambda c, u, statement, *more: fetched.append(statement))
    study.look()
    assert not [text for text in fetched if "rk_trial.params" in text or "rk_segment.score" in text]
    assert len(fetched) < 14
    execute(filled, task.update().where(task.c.uid == uid(RUNNING)).values(lease_owner=None))
    view = study.look()
    assert (view.running, view.workers, len(view.failures)) == ([], [], 1)


@on_sqlite
def test_watch_prints_once_without_a_terminal(filled: Store, cli: Cli) -> None:
    train(filled, str(Owner.current()))
    status, out, err = cli("watch", NAME, "--storage", read_only(filled.url))
    assert (status, err) == (0, "")
    assert "▁█▆" in out
    assert "memory, retried  MemoryError: <b>no room</b>" in out
    assert max(map(len, out.splitlines())) <= 80
    view = json.loads(cli("watch", "--storage", filled.url, "--json")[1])  # the youngest study
    assert (view["format"], view["study"], view["best"]["value"]) == (1, NAME, 3.0)
    status, _, err = cli("watch", "nobody", "--storage", filled.url)
    assert status == 2
    assert "there is no study 'nobody'; there are 'study'" in err


@on_sqlite
def test_watch_ends_at_q_and_says_the_state(filled: Store, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    train(filled, str(Owner.current()))
    master, slave = pty.openpty()
    screen = io.StringIO()
    terminal: dict[str, Any] = {"file": screen, "force_terminal": True, "width": 80, "height": 40, "highlight": False}
    monkeypatch.setattr(command, "new_console", lambda: Console(**terminal))
    with os.fdopen(master, "wb", 0) as keyboard, os.fdopen(slave) as terminal_input:
        monkeypatch.setattr(sys, "stdin", terminal_input)
        keyboard.write(b"xq")
        assert cli("watch", NAME, "--storage", filled.url, "--every", "0.01")[0] == 0
    assert "in training" in screen.getvalue()
    assert "study: running; 0:00  trials: 1 complete, 1 pruned" in screen.getvalue()


@on_sqlite
def test_watch_without_a_keyboard_ends_by_ctrl_c(filled: Store, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, look, seen = io.StringIO(), LiveStudy.look, list[None]()

    def looked(study: LiveStudy) -> Any:
        seen.append(None)
        if len(seen) == 3:
            raise KeyboardInterrupt  # as the signal would, at some moment
        return look(study)

    terminal: dict[str, Any] = {"file": screen, "force_terminal": True, "width": 80, "height": 40, "highlight": False}
    monkeypatch.setattr(command, "new_console", lambda: Console(**terminal))
    monkeypatch.setattr(LiveStudy, "look", looked)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert cli("watch", NAME, "--storage", filled.url, "--every", "0.01")[0] == 0
    assert "trials: 1 complete, 1 pruned, 1 failed, 1 waiting" in screen.getvalue()


def test_a_terminal_shows_a_panel_while_a_study_runs(sqlite_url: str) -> None:
    screen = io.StringIO()
    with Store(sqlite_url) as store:
        start_study(store, "s", make_config(load("surrogate"), None, trials=2, epochs=(1, 2, 2), scheduler="none"))
        with Progress(Console(file=screen, force_terminal=True, width=100), "s", sqlite_url) as progress:
            progress.state = "waits"
            progress.show(look(store, "s"))
            assert Worker(store, "s").run()
            progress.show(look(store, "s"))
            progress.say("a line above")
    output = " ".join(screen.getvalue().split())
    assert "epochs/s on 0 workers" in output  # steps of an environment are not told where there is none
    assert "a line above" in output
    assert "0/4" in output
    assert "4/4" in output


def test_trainings_are_not_called_trials(sqlite_url: str) -> None:
    """With two seeds, a trial is trained twice."""
    screen = io.StringIO()
    with Store(sqlite_url) as store:
        options = seed_options(2, "mean")
        start_study(store, "s", make_config(load("surrogate"), None, trials=2, epochs=(1, 1, 2), options=options))
        console = Console(file=screen, width=100)
        progress = Progress(console, "s", sqlite_url)
        progress.show(look(store, "s"))
        assert "trainings: 4 open" in screen.getvalue()
        console.print(progress.panel(look(store, "s")))
        assert "trainings" in screen.getvalue().partition("┌")[2] + screen.getvalue().partition("╭")[2]


def test_watch_of_an_empty_storage_says_what_makes_a_study(sqlite_url: str, cli: Cli) -> None:
    Store(sqlite_url).close()
    status, _, errors = cli("watch", "--storage", sqlite_url)
    assert (status, "there is no study in" in errors, "`rekindle tune` makes one" in errors) == (2, True, True)
    status, out, _ = cli("status", "--storage", sqlite_url)
    assert (status, "no study yet" in out) == (0, True)


def test_a_sparkline_spans_its_values() -> None:
    assert sparkline([1.0, 4.0, 2.5]) == "▁█▅"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([]) == ""


@on_sqlite
def test_a_running_training_is_named_by_its_seed(url: str) -> None:
    with Store(url) as store, ExitStack() as held:
        config = make_config(
            load("surrogate"), None, trials=1, epochs=(1, 1, 2), options=seed_options(2, "mean"), seed=7
        )
        start_study(store, "s", config)
        StudyRunner(store, "s").advance()
        for trial in store.trials("s"):
            held.enter_context(store.open(trial.uid, {}))
        assert sorted(row.seed for row in LiveStudy(store, "s").look().running) == [7, 8]
