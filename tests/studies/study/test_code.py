"""Each driver refuses to train on with other code than its trials began with, until the user accepts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna
import own_functions
import pytest
from optuna.storages import RDBStorage
from rekindle import tune
from rekindle.studies.engine.checked_config import make_config, make_population
from rekindle.studies.engine.runner import start_study
from rekindle.studies.errors import MachineMismatch
from rekindle.studies.objective import Objective
from rekindle.studies.orion import hunt
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.worker import Worker

CHANGED = r"trains with own_functions:climb of digest a1, but the working directory .* has it with digest b2; .*"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function that changes the digest of the task's function."""

    def change(digest: str) -> None:
        monkeypatch.setattr(own_functions.climb.learner, "files", lambda: {"own_functions:climb": digest})

    change("a1")
    return change


def test_a_study_goes_on_with_a_changed_function_once_it_is_accepted(url: str, code: Callable[[str], None]) -> None:
    with Store(url) as store:
        start_study(store, "s", make_config(own_functions.climb, None, trials=2, epochs=[1, 1], scheduler="none"))
        code("b2")
        with pytest.raises(MachineMismatch, match=f"study 's' {CHANGED}accept .*rekindle extend s --code"):
            Worker(store, "s").run()
        with pytest.raises(MachineMismatch, match=CHANGED):
            tune(own_functions.climb, trials=3, epochs=1, scheduler="none", storage=store, study="s", progress=False)
        Steering(store, "s").extend(code=True)
        assert Worker(store, "s").run()
        assert len(store.trials("s")) == 2  # a refused command changes nothing
        Steering(store, "s").extend(3)
        code("a1")
        with pytest.raises(MachineMismatch, match="of digest b2"):
            Worker(store, "s").run()


def test_a_population_goes_on_with_a_changed_function_once_accepted(url: str, code: Callable[[str], None]) -> None:
    with Store(url) as store:
        start_study(store, "s", make_population(own_functions.climb, None, population=2, epochs=2, interval=1))
        code("b2")
        with pytest.raises(MachineMismatch, match=f"study 's' {CHANGED}accept .*rekindle extend s --code"):
            Worker(store, "s").run()
        assert not any(task.epochs for task in store.tasks())
        Steering(store, "s").extend(code=True)
        assert Worker(store, "s").run()


def test_an_objective_of_optuna_trains_with_one_version_of_a_function(url: str, code: Callable[[str], None]) -> None:
    storage = RDBStorage(url)
    study = optuna.create_study(study_name="o", direction="maximize", storage=storage)

    def optimize(**options: Any) -> None:
        with Store(url) as store:
            study.optimize(Objective(own_functions.climb, epochs=1, storage=store, **options), n_trials=1)

    optimize()
    code("b2")
    with pytest.raises(MachineMismatch, match=f"the study 'o' of Optuna {CHANGED}accept .*code=True"):
        optimize()
    optimize(code=True)
    optimize()
    code("a1")
    with pytest.raises(MachineMismatch, match="of digest b2"):
        optimize()
    storage.engine.dispose()


def test_a_trial_of_optuna_resumes_with_the_code_that_it_began_with(
    sqlite_url: str, code: Callable[[str], None]
) -> None:
    with Store(sqlite_url) as store:
        for epochs, digest in ((1, "a1"), (2, "b2")):
            code(digest)
            study = optuna.create_study(direction="maximize")
            study.enqueue_trial({"lr": 0.01, "noise.scale": 0.5})
            objective = Objective(own_functions.climb, epochs=epochs, storage=store)
            if epochs == 1:
                study.optimize(objective, n_trials=1)
        with pytest.raises(MachineMismatch, match=f"task .* {CHANGED}"):
            study.optimize(objective, n_trials=1)
        assert store.holders() == {}


def test_a_hunt_trains_with_one_version_of_a_function(url: str, code: Callable[[str], None]) -> None:
    def start(trials: int, **options: Any) -> Any:
        return hunt(own_functions.climb, name="h", storage=url, max_trials=trials, algorithm="random", **options)

    start(1)
    code("b2")
    with pytest.raises(MachineMismatch, match=f"the hunt 'h' {CHANGED}code=True"):
        start(2)
    start(2, code=True)
    assert len(start(3).fetch_trials()) == 3
    code("a1")
    with pytest.raises(MachineMismatch, match="of digest b2"):
        start(4)


def test_train_resumes_a_changed_function_only_if_told(url: str, code: Callable[[str], None], cli: Cli) -> None:
    words = ["train", "own_functions:climb", "--storage", url]
    assert cli(*words, "--epochs", "1")[0] == 0
    code("b2")
    status, _, errors = cli(*words, "--epochs", "2")
    assert status != 0
    assert "has it with digest b2" in errors
    assert "accept it as it is there (`--code`)" in errors
    assert cli(*words, "--epochs", "2", "--code")[0] == 0
    assert cli(*words, "--epochs", "3")[0] == 0
