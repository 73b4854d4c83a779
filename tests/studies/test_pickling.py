"""Objects in other processes, as joblib, Dask, Ray and spawned pools send them: by URL and identity."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from signal import SIGINT
from typing import Any

import optuna
import pytest
import rekindle
from rekindle.studies.engine.lineage import lineage
from rekindle.studies.errors import LeaseLost, TaskBusy
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.supervisor import Interrupted
from rekindle.tasks import load, record
from rekindle.tasks.adapters.program_commands import ProgramCommand
from rekindle.tasks.algorithms.surrogate import Surrogate
from rekindle.tasks.checkpoint.state import difference


class Renamed(Surrogate):
    name = "another"


PROGRAM = ProgramCommand.of(
    ["python", "train.py", "--lr", "{lr}", "--epochs", "{epochs}", "--dir", "{checkpoint}"], {"lr": "uniform(0, 1)"}
)


def again(sent: Any) -> Any:
    return pickle.loads(pickle.dumps(sent))


def test_a_store_and_a_study_are_opened_again_by_their_url(url: str) -> None:
    with Store(url, lease_seconds=30.0) as store:
        study = rekindle.tune("surrogate", trials=3, epochs=1, storage=store, progress=False)
        with again(store) as other:
            assert (other.url, other.lease_seconds, other.keep) == (store.url, 30.0, store.keep)
        sent = again(study)
        assert sent.trials == study.trials
        sent.store.close()


@pytest.mark.parametrize("opened", [True, False])
def test_an_objective_opens_its_own_store(sqlite_url: str, opened: bool) -> None:
    storage: Any = Store(sqlite_url) if opened else sqlite_url
    objective = rekindle.Objective("surrogate", epochs=3, storage=storage)
    study = optuna.create_study(direction="maximize")
    study.optimize(objective, n_trials=1)
    sent = again(objective)
    assert sent.store is not objective.store
    study.enqueue_trial(study.trials[0].params)
    study.optimize(sent, n_trials=1)
    assert study.trials[0].user_attrs == study.trials[1].user_attrs
    sent.store.close()
    objective.store.close()


def test_a_task_keeps_its_state_wherever_it_is_sent() -> None:
    task = Surrogate(seed=3, width=64)
    assert again(task).init(lr=1e-3).identity == Surrogate(seed=3).init(lr=1e-3, width=64).identity
    task.init(lr=1e-3, noise=1.0).fit(2)
    sent = again(task)
    assert (sent.history, sent.digest, sent.fixed) == (task.history, task.digest, {"width": 64})
    assert sent.fit(4) == task.fit(4)
    assert sent.digest == task.digest == copy.deepcopy(task).digest


def test_a_stored_task_is_taken_up_once_it_is_free(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        task = Surrogate(storage=store).init()
        task.fit(2)
        sent = pickle.dumps(task)
        digest = task.digest
        task.release()
        other = pickle.loads(sent)
        assert (other.uid, other.epochs, other.digest) == (task.uid, 2, digest)
        with Store(sqlite_url) as third:
            longer = Surrogate(storage=third).init()
            longer.fit(3)
            longer.release()
        assert other.fit(3) == longer.metrics
        assert (other.stored.resumed, other.digest) == (True, longer.digest)
        other.release()
        other.stored.storage.close()


@pytest.mark.parametrize(
    ("name", "env"),
    [(PROGRAM.name, None), ("test_pickling:Renamed", None), ("sb3:stable_baselines3.a2c.a2c:A2C", "CartPole-v1")],
    ids=["program", "class", "model"],
)
def test_a_task_whose_class_was_made_is_sent_by_its_name(name: str, env: str | None) -> None:
    task = load(name)(env).init()
    sent = again(task)
    assert type(sent) is type(task)
    assert (sent.uid, sent.digest) == (task.uid, task.digest)


def test_a_sent_branch_is_recorded_as_one(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        parent = Surrogate(storage=store).init()
        parent.fit(1)
        branch = Surrogate(storage=store).init(lr=1e-3)
        branch.load_state_dict(parent.state_dict(), perturb=True)
        sent = pickle.dumps(branch)
        branch.release()
        other = pickle.loads(sent)
        rekindle.Cohort([other, again(Surrogate().init())]).fit(2)
        assert [link.uid for link in lineage(store, other.uid)] == [parent.uid, other.uid]
        other.release()
        other.stored.storage.close()


def test_a_sent_task_knows_why_it_is_inexact_and_what_it_began_with(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = rekindle.PPO("CartPole-v1").init()
    warm = rekindle.PPO("CartPole-v1", warm_start=source).init()
    assert (again(warm).load_report, again(warm).beginning().keys()) == (warm.load_report, warm.beginning().keys())
    assert difference(again(warm).beginning(), warm.beginning()) == []
    with Store(sqlite_url) as store:
        task = Surrogate(storage=store).init()
        task.fit(1)
        task.finish()
        monkeypatch.setattr(record, "fingerprint", lambda *_: {"torch": "another"})
        resumed = Surrogate(storage=store).init()
        assert len(resumed.inexact) == 1
        sent = pickle.dumps(resumed)
        resumed.release()
        other = pickle.loads(sent)
        assert (other.inexact, other.resumed, other.report()) == (resumed.inexact, True, resumed.report())
        other.fit(2)
        assert other.inexact == resumed.inexact
        other.release()
        other.stored.storage.close()


def test_an_error_arrives_in_the_process_that_waits_for_it() -> None:
    for error in (TaskBusy("u", "h:b:1:2", "h", 1, 3.0), LeaseLost(["u"], "it was cancelled"), Interrupted(SIGINT)):
        sent = again(error)
        assert (type(sent), sent.args, vars(sent)) == (type(error), error.args, vars(error))


def _optimized(objective: rekindle.Objective, task: Surrogate, study: rekindle.Study) -> tuple[float, str, int]:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    other_study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    other_study.optimize(objective, n_trials=1)
    task.fit(3)
    return other_study.best_value, task.digest, len(study.trials)


@pytest.mark.slow
def test_a_spawned_process_optimizes_an_objective_and_trains_a_task(sqlite_url: str) -> None:
    objective = rekindle.Objective("surrogate", epochs=3, storage=sqlite_url)
    study = rekindle.tune("surrogate", trials=2, epochs=1, storage=sqlite_url, progress=False)
    task = Surrogate().init()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply_async(_optimized, (objective, task, study)).get(timeout=300)
    assert result == _optimized(objective, task, study)
    with Store(sqlite_url) as store:
        held = Surrogate(storage=store).init(lr=1e-2)
        with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(TaskBusy, match="is held by process"):
            pool.apply_async(_optimized, (objective, held, study)).get(timeout=300)
        held.release()
