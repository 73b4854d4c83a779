"""The copy of a study in Optuna's tables, read by Optuna."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import optuna
import pytest
import rekindle
from optuna.trial import TrialState
from rekindle.studies.engine.optuna_mirror import FORM, Mirror, MirrorError, forget, frozen, mirror
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import StoreError
from rekindle.studies.storage.rows import Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.training import TaskStorage, Training
from rekindle.tasks import load


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    with Store(sqlite_url) as store:
        yield store


def shown(store: Store) -> optuna.Study:
    return optuna.load_study(study_name="s", storage=str(store.database.url))


def search(store: Store, trials: int) -> None:
    rekindle.tune("surrogate", trials=trials, epochs=(1, 3, 3), study="s", storage=store, progress=False)


def test_an_excluded_trial_is_no_result_of_optuna_s(store: Store, sqlite_url: str) -> None:
    options: dict[str, Any] = {"epochs": 2, "scheduler": "none", "storage": store, "progress": False}
    rekindle.tune("surrogate", trials=4, study="s", **options)
    with Mirror(store, sqlite_url, "s") as copy:
        copy.update()
    first = shown(store).best_trial
    rekindle.Study("s", store).exclude(first.number, "a fault of the simulator")
    with Mirror(store, sqlite_url, "s") as copy:
        assert copy.update() == 4  # a copy that is over cannot be changed
        assert copy.update() == 0
    trial = shown(store).trials[first.number]
    assert (trial.state, trial.values, trial.user_attrs["rk_state"]) == (TrialState.FAIL, None, "excluded")
    best = rekindle.Study("s", store).best
    assert best is not None
    assert shown(store).best_trial.number == best.number != first.number


def test_tables_that_cannot_be_written_are_an_error_of_the_storage(store: Store, sqlite_url: str) -> None:
    search(store, 2)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as database:
        database.execute("create trigger full before insert on trials begin insert into nowhere values (1); end")
    database.close()
    search(store, 4)  # whose copy is left as it is
    with Mirror(store, sqlite_url, "s") as copy, pytest.raises(StoreError, match="tables of study 's' cannot be writ"):
        copy.update()
    assert (len(shown(store).trials), len(store.trials("s"))) == (2, 4)


def test_trials_are_shown_while_they_train_and_as_they_end(store: Store, sqlite_url: str) -> None:
    start_study(store, "s", study_config(load("surrogate"), None, epochs=(1, 3, 3), trials=4))
    runner = StudyRunner(store, "s", "cpu")
    first = runner.advance()[0]
    with Mirror(store, sqlite_url, "s") as copy:
        assert copy.update() == 4
        assert [trial.state for trial in shown(store).trials] == [TrialState.WAITING] * 4
        task = runner.task(first.trial, TaskStorage(store, False))
        task.fit(1)
        task.release()
        assert copy.update() == 1
        assert shown(store).trials[0].state == TrialState.RUNNING
        assert shown(store).trials[0].intermediate_values == {}  # until the segment has its result
        Training(runner, [first], {}).run()
        assert copy.update() == 1
        [result] = [row for row in store.segments("s") if row.state == "done"]
        assert shown(store).trials[0].intermediate_values == {1: result.score}
        search(store, 4)
        copy.update()
        assert copy.update() == 0
    ends = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
    began = store.started([row.uid for row in store.trials("s")])
    for row, trial in zip(store.trials("s"), shown(store).trials, strict=True):
        assert trial.state == ends[row.state]
        assert trial.user_attrs["rk_uid"] == row.uid
        assert row.finished is not None
        assert trial.datetime_start == datetime.fromtimestamp(began[row.uid])
        assert trial.datetime_complete == datetime.fromtimestamp(row.finished)
        scores = {each.epochs: each.score for each in store.segments("s") if each.number == row.number}
        assert trial.intermediate_values == scores
        assert trial.value == scores[max(scores)]


def test_hyperparameters_have_their_own_values(store: Store) -> None:
    search(store, 4)
    for row, trial in zip(store.trials("s"), shown(store).trials, strict=True):
        assert trial.params == {name: row.params[name] for name in ("lr", "gamma", "width")}
    assert shown(store).metric_names == ["return"]


@pytest.mark.slow
def test_importances_and_pictures_of_optuna_work(store: Store) -> None:
    epochs = (2, 2, 2)
    rekindle.tune("surrogate", trials=40, epochs=epochs, study="s", storage=store, progress=False, scheduler="none")
    study = shown(store)
    assert set(optuna.importance.get_param_importances(study)) == {"lr", "gamma", "width"}
    assert optuna.visualization.plot_parallel_coordinate(study).data
    assert optuna.visualization.plot_timeline(study).data


@pytest.mark.slow
def test_branches_of_a_population_name_what_they_start_from(store: Store) -> None:
    options = {"scheduler": "pbt", "population": 4, "interval": 1}
    rekindle.tune("surrogate", epochs=3, study="s", storage=store, progress=False, **options)
    branches = [row for row in store.trials("s") if "start" in row.attrs]
    assert branches
    for row in branches:
        trial = shown(store).trials[row.number]
        assert trial.user_attrs["rk_parent"] == row.attrs["parent"]
        assert trial.user_attrs["rk_parent_epochs"] == row.attrs["start"]["epochs"]


@pytest.mark.slow
def test_cancelled_and_failed_trials_say_why(store: Store) -> None:
    config = study_config(load("surrogate"), None, trials=2, epochs=(3,), scheduler="none")
    for state, error, more in (
        ("cancelled", "by me", {"rk_state": "cancelled", "rk_error": "by me"}),
        ("failed", "Traceback\nDiverged: NaN\n", {"rk_error": "Diverged: NaN"}),
    ):
        trial = Trial(0, uid="a", params={}, state=state, error=error, finished=3.0)
        found = frozen(config, (trial, [], {}), 2.0)
        assert found.state == TrialState.FAIL
        assert found.user_attrs == {"rk_uid": "a", **more}


def test_only_a_copy_is_forgotten(store: Store, sqlite_url: str) -> None:
    forget(store, "s")  # there are no tables of Optuna's yet
    search(store, 1)
    mirror(store, sqlite_url, "s")
    optuna.create_study(study_name="own", storage=sqlite_url)
    for name in ("own", "none", "s"):
        forget(store, name)
    assert optuna.get_all_study_names(sqlite_url) == ["own"]


def test_a_copy_of_an_older_form_is_made_again_and_a_foreign_study_is_left(store: Store, sqlite_url: str) -> None:
    search(store, 2)
    old = shown(store)
    old.set_user_attr(FORM, 1)
    old.add_trial(optuna.trial.create_trial(value=1.0))
    assert mirror(store, sqlite_url, "s") == 2
    assert len(shown(store).trials) == 2
    optuna.delete_study(study_name="s", storage=sqlite_url)
    foreign = optuna.create_study(study_name="s", storage=sqlite_url, direction="maximize")
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(MirrorError, match="they hold another one of that name"):
        mirror(store, sqlite_url, "s")
    assert len(foreign.trials) == 1


def test_two_processes_do_not_copy_at_once(store: Store, sqlite_url: str) -> None:
    search(store, 2)
    with Mirror(store, sqlite_url, "s") as first, Store(sqlite_url) as other:
        first.update()
        assert mirror(other, sqlite_url, "s") == 0
        assert other.workers() == []  # it trains nothing, so no worker leaves it a share
