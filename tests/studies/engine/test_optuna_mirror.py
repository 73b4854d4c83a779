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
from rekindle.spaces import categorical, log_real, maybe
from rekindle.studies.engine.optuna_mirror import FORM, Mirror, _parameter, forget, frozen, mirror
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
    with Mirror(store, "s") as copy:
        copy.update()
    first = shown(store).best_trial
    rekindle.Study("s", store).exclude(first.number, "a fault of the simulator")
    with Mirror(store, "s") as copy:
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
    with Mirror(store, "s") as copy, pytest.raises(StoreError, match="tables of study 's' cannot be writ"):
        copy.update()
    assert (len(shown(store).trials), len(store.trials("s"))) == (2, 4)


def test_trials_are_shown_while_they_train_and_as_they_end(store: Store, sqlite_url: str) -> None:
    start_study(store, "s", study_config(load("surrogate"), None, epochs=(1, 3, 3), trials=4))
    runner = StudyRunner(store, "s", "cpu")
    first = runner.advance()[0]
    with Mirror(store, "s") as copy:
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
        scores = {segment.epochs: segment.score for segment in store.segments("s") if segment.number == row.number}
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
        result = frozen(config, (trial, [], {}), 2.0)
        assert result.state == TrialState.FAIL
        assert result.user_attrs == {"rk_uid": "a", "rk_number": 0, **more}


def test_only_a_copy_is_forgotten(store: Store, sqlite_url: str) -> None:
    forget(store, "s")  # there are no tables of Optuna's yet
    search(store, 1)
    mirror(store, "s")
    optuna.create_study(study_name="own", storage=sqlite_url)
    for name in ("own", "none", "s"):
        forget(store, name)
    assert optuna.get_all_study_names(sqlite_url) == ["own"]


def test_a_copy_of_an_older_form_is_made_again_and_a_foreign_study_is_left(store: Store, sqlite_url: str) -> None:
    search(store, 2)
    old = shown(store)
    old.set_user_attr(FORM, 1)
    old.add_trial(optuna.trial.create_trial(value=1.0))
    assert mirror(store, "s") == 2
    assert len(shown(store).trials) == 2
    optuna.delete_study(study_name="s", storage=sqlite_url)
    foreign = optuna.create_study(study_name="s", storage=sqlite_url, direction="maximize")
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    said: list[str] = []
    assert mirror(store, "s", said.append) == 0
    assert "they hold another one of that name" in said[0]
    assert len(foreign.trials) == 1


def test_two_processes_do_not_copy_at_once(store: Store, sqlite_url: str) -> None:
    search(store, 2)
    with Mirror(store, "s") as first, Store(sqlite_url) as other:
        first.update()
        assert mirror(other, "s") == 0
        assert other.workers() == []  # it trains nothing, so no worker leaves it a share


def test_changed_priors_are_copied_with_the_choices_of_all(store: Store) -> None:
    search(store, 4)
    study = rekindle.Study("s", store)
    study.extend(6, priors={"width": "ordinal(64, 128)"})
    with Mirror(store, "s") as copy:  # as it is while workers train
        assert copy.update() == 4
        assert study.run(progress=False).complete
        copy.update()
    study.extend(8, priors={"width": "uniform(16, 32, discrete=True, step=16)", "lr": "loguniform(1e-4, 1e-1)"})
    study.run(progress=False)
    for row, trial in zip(store.trials("s"), shown(store).trials, strict=True):
        assert trial.params == {name: row.params[name] for name in ("lr", "gamma", "width")}
    assert {row.params["width"] for row in store.trials("s")[4:6]} <= {64, 128}


def test_a_hyperparameter_that_may_be_none_becomes_a_range() -> None:
    dimensions = [maybe(log_real(1e-3, 1e-1)), log_real(1e-3, 1e-1)]
    assert _parameter(dimensions, 0.05) == (0.05, optuna.distributions.FloatDistribution(1e-3, 1e-1, log=True))
    assert _parameter(dimensions, 0.5) == (0.5, optuna.distributions.FloatDistribution(1e-3, 0.5, log=True))
    assert _parameter(dimensions, None) is None
    assert _parameter(dimensions, 0) is None  # a logarithmic range cannot hold it
    choices = optuna.distributions.CategoricalDistribution(["a", "b", None])
    assert _parameter([categorical("a", "b"), maybe(categorical("a", "b"))], None) == (None, choices)


def test_trials_that_a_user_adds_to_the_copy_are_left_alone(store: Store) -> None:
    search(store, 4)
    shown(store).enqueue_trial({"lr": 0.05})
    shown(store).optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1e-1, log=True), n_trials=2)
    search(store, 6)
    additions = [trial for trial in shown(store).trials if "rk_uid" not in trial.user_attrs]
    assert [(trial.number, trial.params["lr"], trial.value) for trial in additions][:1] == [(4, 0.05, 0.05)]
    assert len(additions) == 2
    copies = {trial.user_attrs["rk_number"]: trial for trial in shown(store).trials if trial not in additions}
    for row in store.trials("s"):
        assert copies[row.number].params["lr"] == row.params["lr"]
        assert copies[row.number].user_attrs["rk_uid"] == row.uid
        assert copies[row.number].state.is_finished()


def test_tables_of_another_version_change_no_status(store: Store, sqlite_url: str, cli: Any) -> None:
    search(store, 2)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as database:
        [[version]] = database.execute("SELECT version_num FROM alembic_version").fetchall()
        database.execute("UPDATE alembic_version SET version_num = 'v9.9.9.a'")
    database.close()
    words = ["tune", "surrogate", "--epochs", "1:3", "--trials", "4", "--workers", "1", "--study", "s"]
    status, _, errors = cli(*words, "--epochs", "1:3:3", "--storage", sqlite_url)
    assert status == 0
    assert "Optuna's tables were left as they are: " in errors
    status, _, errors = cli("delete", "s", "--yes", "--storage", sqlite_url)
    assert status == 0
    assert "the copy of study 's' in Optuna's tables stays: " in errors
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (version,))
    database.close()
    search(store, 3)  # another study of this name
    assert [trial.user_attrs["rk_uid"] for trial in shown(store).trials] == [row.uid for row in store.trials("s")]
