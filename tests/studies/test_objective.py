"""The objective in a user's own Optuna study: reports, pruning, crashes, retries, and trials held elsewhere."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
import optuna
import pytest
import rekindle
from optuna.trial import TrialState
from rekindle.studies.objective import Objective
from rekindle.studies.storage.store import Store
from rekindle.tasks.algorithms.ppo import PPO, PPOLearner

FIXED: dict[str, Any] = {"epoch_steps": 64, "num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 1}
FIXED["model"] = {"width": 16, "layers": 1, "activation": "tanh"}


def objective(url: str, epochs: int = 4, **options: Any) -> Objective:
    return Objective(PPO, "CartPole-v1", epochs=epochs, storage=url, **{**FIXED, **options})


def new_study(**options: Any) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1), **options)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every epoch that is really trained, in order."""
    epochs: list[int] = []
    run_epoch = PPOLearner.run_epoch

    def counted(learner: PPOLearner, *args: Any, **kwargs: Any) -> Any:
        metrics = run_epoch(learner, *args, **kwargs)
        epochs.append(learner.epochs)
        return metrics

    monkeypatch.setattr(PPOLearner, "run_epoch", counted)
    return epochs


class Crash(RuntimeError):
    """Stands for whatever ends a worker."""


@pytest.fixture
def crash_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the evaluation of an epoch fail, once."""
    evaluate = PPO.evaluate

    def arm(epoch: int) -> None:
        armed = [True]

        def fails(task: PPO, *args: Any, **more: Any) -> float:
            if task.epochs == epoch and armed:
                armed.clear()
                raise Crash
            return evaluate(task, *args, **more)

        monkeypatch.setattr(PPO, "evaluate", fails)

    return arm


def test_it_is_the_rekindle_objective() -> None:
    assert rekindle.Objective is Objective


def test_a_task_is_given_by_its_name_too(sqlite_url: str) -> None:
    study = new_study()
    study.optimize(Objective("surrogate", epochs=2, storage=sqlite_url), n_trials=1)
    assert list(study.trials[0].intermediate_values) == [1, 2]
    with pytest.raises(ValueError, match=r"a task must be one of a2c, .* but got 'surogate'; did you mean surrogate\?"):
        Objective("surogate", epochs=2, storage=sqlite_url)


def test_every_epoch_is_reported_and_the_last_is_the_value(sqlite_url: str) -> None:
    study = new_study()
    study.optimize(objective(sqlite_url), n_trials=2)
    for trial in study.trials:
        assert list(trial.intermediate_values) == [1, 2, 3, 4]
        assert trial.value == trial.intermediate_values[4]
        assert trial.params.keys() >= {"one_minus_gamma", "optimizer.lr"}
        assert not any(name.startswith("num_steps") for name in trial.params)
        with Store(sqlite_url) as store:
            [*_, last] = store.checkpoints(trial.user_attrs["rk_uid"])
        assert (last.epochs, last.digest) == (trial.user_attrs["rk_epochs"], trial.user_attrs["rk_digest"])


@pytest.mark.parametrize(
    ("report", "steps"), [(0, []), *(pytest.param(*row, marks=pytest.mark.slow) for row in ((2, [2, 4]), (3, [3])))]
)
def test_reports_come_as_often_as_asked(sqlite_url: str, report: int, steps: list[int]) -> None:
    study = new_study()
    study.optimize(objective(sqlite_url, report=report), n_trials=1)
    assert list(study.trials[0].intermediate_values) == steps
    assert study.trials[0].state == TrialState.COMPLETE


def test_a_repeated_suggestion_costs_nothing(sqlite_url: str, trained: list[int]) -> None:
    study = new_study()
    study.optimize(objective(sqlite_url), n_trials=1)
    study.enqueue_trial(study.trials[0].params)
    study.optimize(objective(sqlite_url), n_trials=1)
    first, second = study.trials
    assert trained == [1, 2, 3, 4]
    assert first.intermediate_values == second.intermediate_values
    assert first.user_attrs == second.user_attrs


def test_a_crashed_trial_that_is_enqueued_again_carries_on(
    sqlite_url: str, tmp_path: Path, trained: list[int], crash_after: Callable[[int], None]
) -> None:
    whole = new_study()
    whole.optimize(objective(f"sqlite:///{tmp_path / 'other.db'}"), n_trials=1)
    trained.clear()
    crash_after(3)
    study = new_study()
    study.optimize(objective(sqlite_url), n_trials=1, catch=Crash)
    assert study.trials[0].state == TrialState.FAIL
    study.enqueue_trial(study.trials[0].params)
    study.optimize(objective(sqlite_url), n_trials=1)
    assert trained == [1, 2, 3, 4]
    assert study.trials[1].user_attrs == whole.trials[0].user_attrs
    assert study.trials[1].intermediate_values == whole.trials[0].intermediate_values


class PruneAt(optuna.pruners.BasePruner):
    """Prunes every trial after one epoch."""

    def __init__(self, epoch: int):
        self.epoch = epoch

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return trial.last_step == self.epoch


def test_a_pruned_trial_stops_and_a_later_study_carries_it_on(sqlite_url: str, trained: list[int]) -> None:
    study = new_study(pruner=PruneAt(2))
    study.optimize(objective(sqlite_url), n_trials=1)
    assert (study.trials[0].state, study.trials[0].user_attrs["rk_epochs"]) == (TrialState.PRUNED, 2)
    patient = new_study()
    patient.optimize(objective(sqlite_url), n_trials=1)
    assert trained == [1, 2, 3, 4]
    assert list(patient.trials[0].intermediate_values) == [1, 2, 3, 4]


def test_a_study_of_fewer_epochs_gets_the_result_of_fewer_epochs(sqlite_url: str) -> None:
    longer, shorter, fresh = new_study(), new_study(), new_study()
    longer.optimize(objective(sqlite_url), n_trials=1)
    shorter.optimize(objective(sqlite_url, epochs=2), n_trials=1)
    fresh.optimize(objective(sqlite_url + "2", epochs=2), n_trials=1)
    [result], [wanted] = shorter.trials, fresh.trials
    assert (result.value, result.user_attrs, result.intermediate_values) == (
        wanted.value,
        wanted.user_attrs,
        wanted.intermediate_values,
    )


def test_a_trial_reports_all_epochs_though_another_study_trained_it_and_measured_fewer(
    sqlite_url: str, trained: list[int]
) -> None:
    seldom, often, fresh = new_study(), new_study(), new_study()
    seldom.optimize(objective(sqlite_url, epochs=3, report=2), n_trials=1)
    often.optimize(objective(sqlite_url), n_trials=1)
    assert trained == [1, 2, 3, 1, 2, 3, 4]
    fresh.optimize(objective(sqlite_url + "2"), n_trials=1)
    [result], [wanted] = often.trials, fresh.trials
    assert (result.intermediate_values, result.user_attrs) == (wanted.intermediate_values, wanted.user_attrs)


@pytest.mark.filterwarnings("ignore:.*nan is not acceptable")
def test_a_trial_reports_its_own_episodes_though_another_study_measured_fewer(sqlite_url: str, tmp_path: Path) -> None:
    alone = new_study()
    alone.optimize(objective(f"sqlite:///{tmp_path / 'alone.db'}", epochs=2), n_trials=1)
    with Store(sqlite_url) as store:
        fewer = objective(sqlite_url, epochs=2, eval_episodes=3)
        measured = new_study()
        measured.optimize(fewer, n_trials=1)
        [row] = store.tasks([measured.trials[0].user_attrs["rk_uid"]])
        assert row.epochs == 2
    study = new_study()
    study.optimize(objective(sqlite_url, epochs=2), n_trials=1)
    assert study.trials[0].user_attrs["rk_uid"] == row.uid
    assert study.trials[0].intermediate_values == alone.trials[0].intermediate_values
    assert study.trials[0].intermediate_values != measured.trials[0].intermediate_values
    assert study.trials[0].value == alone.trials[0].value


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("report", [0, 1])
def test_a_return_that_is_no_finite_number_fails_the_trial(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, value: float, report: int
) -> None:
    """An infinite one would be the best of all."""
    monkeypatch.setattr(PPO, "evaluate", lambda self, *_, **__: value)
    study = new_study()
    study.optimize(objective(sqlite_url, 2, report=report), n_trials=2)
    assert {trial.state for trial in study.trials} == {TrialState.FAIL}
    reasons = [trial.user_attrs["rk_error"] for trial in study.trials]
    assert all(f"the evaluation return became {value}" in reason for reason in reasons)


def test_a_diverged_trial_fails_with_its_reason_and_the_study_continues(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(PPOLearner, "find_nonfinite", lambda learner, metrics: ["entropy became nan"])
        study = new_study()
        study.optimize(objective(sqlite_url), n_trials=1)
    study.optimize(objective(sqlite_url), n_trials=1)
    failed, fine = study.trials
    assert failed.state == TrialState.FAIL
    assert "entropy became nan in epoch 1" in failed.user_attrs["rk_error"]
    assert fine.state == TrialState.COMPLETE


def test_a_trial_of_contradictory_values_fails_with_the_reason_and_the_study_continues(sqlite_url: str) -> None:
    task = Objective("dqn", "CartPole-v1", epochs=1, storage=sqlite_url, learning_starts=64, epoch_steps=128)
    study = new_study()
    for size in (256, 32):
        study.enqueue_trial(task.params(batch_size=size))
    study.optimize(task, n_trials=2)
    failed, fine = study.trials
    assert (failed.state, fine.state) == (TrialState.FAIL, TrialState.COMPLETE)
    assert "batch_size (256) must be at most learning_starts (64)" in failed.user_attrs["rk_error"]


def test_trials_of_behaviours_tell_their_hyperparameters(sqlite_url: str) -> None:
    small = {"epoch_steps": 64, "num_envs": 2}
    task = Objective(
        "behaviours",
        "pettingzoo/hunt_env:Hunt",
        epochs=1,
        storage=sqlite_url,
        deer={"num_steps": 16},
        hunter={"num_steps": 16},
        objectives=["return.deer"],
        **small,
    )
    study = new_study()
    study.enqueue_trial(task.params(deer={"gamma": 0.9}))
    study.optimize(task, n_trials=1)
    values = task.hyperparameters(study.best_trial)
    assert (values["deer"]["gamma"], values["hunter"]["num_steps"], values["num_envs"]) == (0.9, 16, 2)


def test_it_waits_for_a_task_that_another_one_trains(sqlite_url: str, trained: list[int]) -> None:
    first = new_study()
    first.optimize(objective(sqlite_url, epochs=1), n_trials=1)
    second = new_study()
    with Store(sqlite_url) as store:
        [task] = store.tasks()
        assert task.identity is not None
        lease = store.open(task.uid, task.identity)
        thread = threading.Thread(target=lambda: second.optimize(objective(sqlite_url, epochs=2), n_trials=1))
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert trained == [1]
        lease.release()
        thread.join()
    assert trained == [1, 2]
    assert second.trials[0].state == TrialState.COMPLETE


def test_threads_share_an_objective(sqlite_url: str) -> None:
    alone, together = new_study(), new_study()
    shared = objective(sqlite_url)
    together.optimize(shared, n_trials=2, n_jobs=2)
    for trial in together.trials:
        alone.enqueue_trial(trial.params)
    alone.optimize(objective(sqlite_url + "2"), n_trials=2)
    digests = [[trial.user_attrs["rk_digest"] for trial in study.trials] for study in (alone, together)]
    assert digests[0] == digests[1]


RUN = """
import os, signal, sys, time
import optuna
from sqlalchemy import text
sys.path.insert(0, sys.argv[2])
from test_objective import objective
url = sys.argv[1]
retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
storage = optuna.storages.RDBStorage(url, heartbeat_interval=1, grace_period=2, heartbeat_stale_trial_callback=retry)
study = optuna.create_study(storage=storage, study_name="s", direction="maximize", load_if_exists=True)
def dies(trial):
    report = type(trial).report
    def last(self, value, step):
        report(self, value, step)
        if step == 3:
            while not storage.engine.connect().execute(text("SELECT 1 FROM trial_heartbeats")).first():
                time.sleep(0.02)  # a trial without a heartbeat is never stale to Optuna
            os.kill(os.getpid(), signal.SIGKILL)
    type(trial).report = last
    return objective(url)(trial)
study.optimize(dies, n_trials=1)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_whose_process_was_killed_is_retried_by_optunas_heartbeat_and_carries_on(
    sqlite_url: str, trained: list[int], wait_until: Callable[..., None]
) -> None:
    command = [sys.executable, "-c", RUN, sqlite_url, os.path.dirname(__file__)]
    with nursery.Popen(command, stderr=subprocess.PIPE) as process:
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    storage = optuna.storages.RDBStorage(
        sqlite_url, heartbeat_interval=1, grace_period=3, heartbeat_stale_trial_callback=retry
    )
    # The default pruner would prune the retry, once it has seen a few trials.
    study = optuna.load_study(storage=storage, study_name="s", pruner=optuna.pruners.NopPruner())
    retried: list[optuna.trial.FrozenTrial] = []
    deadline = time.monotonic() + 600
    while not retried:
        assert time.monotonic() < deadline
        wait_until(lambda: storage._get_stale_trial_ids(study._study_id))
        study.optimize(objective(sqlite_url), n_trials=1)  # looks for stale trials when it begins one
        finished = study.get_trials(states=[TrialState.COMPLETE])
        retried = [trial for trial in finished if trial.system_attrs.get("failed_trial") == 0]
    [again], dead = retried, study.trials[0]
    assert dead.state == TrialState.FAIL
    assert again.user_attrs["rk_uid"] == dead.user_attrs["rk_uid"]
    assert list(again.intermediate_values) == [1, 2, 3, 4]
    with Store(sqlite_url) as store:
        kinds = [event.kind for event in store.events(dead.user_attrs["rk_uid"])]
    assert "takeover" in kinds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"report": -1}, "report must be 0"),
        ({"seed": -1}, "seed must be"),
        ({"gama": 0.9}, "did you mean gamma"),
    ],
)
def test_an_invalid_objective_is_refused_at_once(sqlite_url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(sqlite_url, **options)
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_several_objectives_are_measured_and_need_their_directions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    several = objective(url, objectives=["return", "model_size", "env_steps_per_second"])
    study = optuna.create_study(
        directions=["maximize", "minimize", "maximize"], sampler=optuna.samplers.NSGAIISampler(seed=0)
    )
    study.optimize(several, n_trials=3)
    with Store(url) as store:
        for trial in study.trials:
            episodes, size, speed = trial.values
            assert episodes == store.metrics(trial.user_attrs["rk_uid"])[-1][1]["return"]
            assert size == (4 * 16 + 16 + 17 * 2) + (4 * 16 + 16 + 17)
            assert speed > 0
    with pytest.raises(
        ValueError, match=r"maximize return, minimize model_size, .*but they are minimize; make it with"
    ):
        optuna.create_study().optimize(several, n_trials=1)
    with pytest.raises(ValueError, match=r"\(maximize return\), but they are minimize"):
        optuna.create_study().optimize(objective(url), n_trials=1)


def test_an_objective_that_is_never_reported_fails_the_trial(tmp_path: Path) -> None:
    alone = objective(f"sqlite:///{tmp_path / 'mine.db'}", objectives=["episode_lengths:minimize"])
    study = optuna.create_study(direction="minimize")
    study.optimize(alone, n_trials=1)
    assert study.trials[0].state == TrialState.FAIL
    assert "and no episode_lengths" in study.trials[0].user_attrs["rk_error"]


def test_enqueued_values_have_names_of_optuna_or_are_refused(sqlite_url: str) -> None:
    objective = Objective("surrogate", epochs=1, storage=sqlite_url)
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial({"lr": 1e-3, "gamma": 0.99, "width": 64})
    with pytest.raises(ValueError, match=r"width.index, but got gamma, width, which Optuna ignores"):
        study.optimize(objective, n_trials=1)
    study.enqueue_trial(objective.params(lr=1e-3, gamma=0.99, width=64))

    def with_another(trial: optuna.Trial) -> Any:
        trial.suggest_float("mine", 0, 1)
        return objective(trial)

    study.optimize(with_another, n_trials=1)
    result = objective.hyperparameters(study.trials[-1])
    assert (result["lr"], round(result["gamma"], 9), result["width"]) == (1e-3, 0.99, 64)


def test_a_prior_that_optuna_lacks_is_refused_at_once(sqlite_url: str) -> None:
    with pytest.raises(ValueError, match="lr: Optuna cannot express a normal prior"):
        Objective("surrogate", epochs=1, storage=sqlite_url, priors={"lr": "lognormal(-5, 1)"})
