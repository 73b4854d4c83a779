"""Hunts of the released Orion: every algorithm to its end, resumed promotions, and its command line."""

from __future__ import annotations

import json
import math
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hunting import orion_says
from orion.client import build_experiment, get_experiment
from orion.core.worker.trial import Trial
from rekindle import PPO, fidelity
from rekindle.spaces import SpaceError
from rekindle.spaces.drivers import to_orion
from rekindle.studies import cli
from rekindle.studies.cli.commands import under_orion as command
from rekindle.studies.cli.commands.train import _orion_epochs
from rekindle.studies.errors import StudyMismatch
from rekindle.studies.orion import OrionObjective, hunt, storage_of
from rekindle.studies.orion.trial import train
from rekindle.studies.orion.trial_rows import NoParent
from rekindle.studies.storage.store import Store
from rekindle.tasks.algorithms.ppo import PPOLearner
from rekindle.tasks.base_learner import BaseLearner
from rekindle.tasks.errors import Diverged, Stopped

TINY: dict[str, Any] = {"epoch_steps": 32, "num_envs": 2, "num_steps": 16, "num_minibatches": 1, "update_epochs": 1}
TINY["model"] = {"width": 8, "layers": 1, "activation": "tanh"}
SEARCH = ["optimizer.lr", "gamma"]
RUNGS = fidelity(1, 4, 2)
HUNTS: dict[str, tuple[dict[str, Any], Any, int, int]] = {  # algorithm, epochs, max_trials, how many there are
    "random": ({"random": {}}, 1, 2, 2),
    "tpe": ({"tpe": {"n_initial_points": 2}}, 1, 3, 3),
    "asha": ({"asha": {}}, fidelity(1, 2, 2), 4, 4),
    "hyperband": ({"hyperband": {"repetitions": 1}}, fidelity(1, 2, 2), 30, 5),
    "evolutiones": ({"evolutiones": {"nums_population": 2, "repetitions": 1}}, fidelity(1, 2, 2), 30, 4),
    "gridsearch": ({"gridsearch": {"n_values": 2}}, 1, 30, 4),
}


LONG = ["tpe", "evolutiones", "gridsearch"]


def start(url: str, algorithm: Any = "random", **options: Any) -> Any:
    options = {"name": "h", "max_trials": 3, "search": SEARCH, "idle_timeout": 20, **TINY, **options}
    return hunt(PPO, "CartPole-v1", storage=url, algorithm=algorithm, **options)


def objective(url: str, **options: Any) -> OrionObjective:
    return OrionObjective(PPO, "CartPole-v1", storage=url, search=SEARCH, **{**TINY, **options})


def told(trial: Trial) -> dict[str, Any]:
    return {result.name.removeprefix("rk_"): result.value for result in trial.results}


def undisturbed(hyperparameters: dict[str, Any], epochs: int) -> PPO:
    task = PPO("CartPole-v1").init(**hyperparameters)
    task.fit(epochs)
    return task


def identity(store: Store, uid: str) -> dict[str, Any]:
    [row] = store.tasks([uid])
    assert row.identity is not None
    return dict(row.identity["hyperparameters"])


@pytest.mark.parametrize(
    "name", ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in ("asha", "hyperband", *LONG))]
)
def test_a_hunt_completes(sqlite_url: str, name: str) -> None:
    algorithm, epochs, max_trials, count = HUNTS[name]
    trials = start(sqlite_url, algorithm, epochs=epochs, max_trials=max_trials).fetch_trials_by_status("completed")
    assert len(trials) == count
    budgets = [trial.params.get("epochs", epochs) for trial in trials]
    assert [told(trial)["epochs"] for trial in trials] == budgets
    if name == "asha":
        check_promotions(sqlite_url, trials)
    if name == "hyperband":  # Orion forgets the parents of its promoted trials
        assert [(row["resumed"], row["epochs"]) for row in map(told, trials) if row["resumed"]] == [(1, 2)]


def check_promotions(url: str, trials: list[Trial]) -> None:
    """Every rung of a configuration carried on from the one below, and ends with the bits of one that was not cut."""
    rungs: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        rungs.setdefault(told(trial)["uid"], []).append(told(trial))
    highest = max(rungs.values(), key=len)
    assert len(highest) > 1
    for configuration in rungs.values():
        epochs = [0, *(row["epochs"] for row in configuration)]
        assert [row["resumed"] for row in configuration] == epochs[:-1]
    with Store(url) as store:
        hyperparameters = identity(store, highest[-1]["uid"])
    task = undisturbed(hyperparameters, highest[-1]["epochs"])
    assert task.digest == highest[-1]["digest"]
    assert -task.evaluate() == highest[-1]["negative_return"]


def test_the_same_call_carries_the_hunt_on_and_another_one_is_refused(sqlite_url: str) -> None:
    assert len(start(sqlite_url, max_trials=1).fetch_trials()) == 1
    assert len(start(sqlite_url, max_trials=2).fetch_trials()) == 2
    with pytest.raises(StudyMismatch, match="started with another seed"):
        start(sqlite_url, seed=1, algorithm={"random": {"seed": 0}})
    build_experiment("own", space={"x": "uniform(0, 1)"}, storage=storage_of(sqlite_url))
    with pytest.raises(StudyMismatch, match="own was not started by a hunt"):
        start(sqlite_url, name="own")


def test_the_result_of_a_trial_is_minus_its_return(sqlite_url: str) -> None:
    [trial] = start(sqlite_url, max_trials=1).fetch_trials()
    with Store(sqlite_url) as store:
        [(epoch, metrics)] = store.metrics(told(trial)["uid"])
    assert (epoch, trial.objective.value) == (1, -metrics["return"])


def test_an_objective_serves_an_experiment_of_the_users_own_and_its_executors(sqlite_url: str, tmp_path: Path) -> None:
    mine = objective(sqlite_url, epochs=RUNGS)
    twin = pickle.loads(pickle.dumps(mine))
    client = build_experiment(
        "own",
        space=to_orion.priors(mine.space),
        algorithm={"random": {"seed": 1}},
        max_trials=1,
        storage=storage_of(sqlite_url),
        working_dir=str(tmp_path),
    )
    with client.tmp_executor("poolexecutor", n_workers=1):
        client.workon(twin, n_workers=1, prepare_trial=lambda client, trial: None)
    [trial] = client.fetch_trials_by_status("completed")
    again = mine(**trial.params)  # it is all there already
    assert [row["value"] for row in again[:2]] == [told(trial)["negative_return"], told(trial)["uid"]]
    assert {row["name"]: row["value"] for row in again}["rk_resumed"] == 4
    fewer = {row["name"]: row["value"] for row in mine(**{**trial.params, "epochs": 2.0})}
    assert (fewer["rk_epochs"], fewer["rk_resumed"]) == (2, 0)
    mine.close()


def test_a_return_that_is_no_number_breaks_the_trial(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPO, "evaluate", lambda self, *_, **__: math.nan)
    with Store(sqlite_url) as store:
        with pytest.raises(Diverged, match="the evaluation return became nan"):
            train(lambda storage: PPO("CartPole-v1", storage=storage), TINY, 1, store)
        [task] = store.tasks()
        assert [event.kind for event in store.events(task.uid)][-1] == "broken"
        assert "return" not in store.metrics(task.uid)[-1][1]


@pytest.mark.slow
def test_a_diverged_trial_is_broken_and_the_hunt_continues(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_epoch, calls = PPOLearner.run_epoch, []

    def fails_first(learner: PPOLearner, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) <= 4:  # one more than Orion lets an experiment have unless it is told otherwise
            raise Diverged("the loss became nan")
        return run_epoch(learner, *args, **kwargs)

    monkeypatch.setattr(PPOLearner, "run_epoch", fails_first)
    trials = start(sqlite_url, max_trials=5).fetch_trials()
    assert sorted(trial.status for trial in trials) == ["broken"] * 4 + ["completed"] * 5
    with Store(sqlite_url) as store:
        events = [event for task in store.tasks() for event in store.events(task.uid) if event.kind == "broken"]
    assert [event.data["error"] for event in events] == ["Diverged: the loss became nan"] * 4


def test_a_trial_that_is_stopped_is_interrupted_and_the_same_call_takes_it_up(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_epoch = PPOLearner.run_epoch

    def stops(learner: PPOLearner, *args: Any, **kwargs: Any) -> Any:
        if learner.epochs == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return run_epoch(learner, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(PPOLearner, "run_epoch", stops)
        with pytest.raises(Stopped):
            start(sqlite_url, max_trials=1, epochs=2)
    [trial] = build_experiment("h", storage=storage_of(sqlite_url)).fetch_trials()
    assert trial.status == "interrupted"
    [again] = start(sqlite_url, max_trials=1, epochs=2).fetch_trials()
    assert (again.id, again.status, told(again)["resumed"]) == (trial.id, "completed", 1)


# What cannot be


class OddLearner(PPOLearner):
    """Has a fidelity of its own, next to the epochs."""

    hyperparameters = PPOLearner.hyperparameters.extend(odd=fidelity(1, 9))


class Odd(PPO):
    learner = OddLearner


def test_a_prior_that_orion_cannot_express_is_named(sqlite_url: str) -> None:
    with pytest.raises(SpaceError, match="Orion cannot express a second fidelity"):
        hunt(Odd, "CartPole-v1", name="h", storage=sqlite_url, max_trials=1, epochs=RUNGS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"algorithm": "hyperbnd"}, "did you mean hyperband"),
        ({"algorithm": "hebo"}, "no algorithm 'hebo' installed; it has asha"),
        ({"algorithm": "pb2", "epochs": RUNGS}, "no algorithm 'pb2' installed; it has .*, pbt, random, tpe; did"),
        ({"algorithm": "asha"}, "give epochs=fidelity"),
        ({"algorithm": {"tpe": {"points": 3}}}, "Orion's tpe takes seed, .*, but got points"),
        ({"algorithm": {"tpe": {}, "random": {}}}, "an algorithm is a name"),
        ({"search": ["optimizer.lrr"]}, "did you mean optimizer.lr"),
        ({"workers": 0}, "workers must be"),
        ({"max_trials": 0}, "max_trials must be"),
        ({"epochs": 0}, "epochs are"),
    ],
)
def test_invalid_values_are_refused_before_anything_is_created(
    sqlite_url: str, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        start(sqlite_url, **options)
    assert not list(tmp_path.iterdir())


# The command line


@pytest.fixture
def under_orion(monkeypatch: pytest.MonkeyPatch, sqlite_url: str, tmp_path: Path) -> Iterator[Path]:
    """As Orion starts a program."""
    result = tmp_path / "results.log"
    monkeypatch.setenv("ORION_RESULTS_PATH", str(result))
    monkeypatch.setenv("ORION_DB_TYPE", "rekindlesql")
    monkeypatch.setenv("ORION_DB_ADDRESS", sqlite_url.removeprefix("sqlite:///"))
    before = signal.getsignal(signal.SIGTERM)
    yield result
    signal.signal(signal.SIGTERM, before)


SMALL = [f"--set:{name}={value}" for name, value in TINY.items() if name != "model"]
TRAIN = ["train", "ppo", "CartPole-v1", *SMALL]


def test_the_trial_is_the_one_that_orion_names(
    under_orion: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORION_TRIAL_ID", "abc")
    monkeypatch.setenv("ORION_EXPERIMENT_ID", "3")
    assert command.trial_row() == (sqlite_url, 3, "abc")
    for name, value in (("ORION_EXPERIMENT_ID", "x"), ("ORION_DB_TYPE", "pickleddb")):
        with monkeypatch.context() as other:
            other.setenv(name, value)
            assert command.trial_row() is None


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            ["--no-better", "return:3"],
            "under Orion, its algorithm decides how long trials train; leave --no-better out",
        ),
        (["--record", "x.npz"], "under Orion, all trials would write the same file; leave --record out"),
        (["--save-config", "x.toml"], "under Orion, all trials would write the same file; leave --save-config out"),
        (["--log", "csv:x.csv"], "under Orion, a trial copies no curves, but got --log; leave it out"),
        (["--epochs", "2", "--env-steps", "64"], "leave one out"),
        (["--epochs", "1:9"], r"a trial has one number of epochs, such as --epochs~'fidelity(1, 9)' gives it, but got"),
    ],
)
def test_options_that_one_of_many_trials_cannot_have_are_refused(
    under_orion: Path, capsys: pytest.CaptureFixture[str], option: list[str], message: str
) -> None:
    assert cli.main([*TRAIN, *option]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not under_orion.exists()


@pytest.mark.parametrize("words", [["ppo", "CartPole-v1", "--set:gamma", "0.9"], ["digits", "--trials", "4"]])
def test_a_study_is_no_trial_of_orions(
    under_orion: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert cli.main(["tune", *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "rekindle: error: Orion waits for the result of one training in ORION_RESULTS_PATH" in said
    assert "but `rekindle tune` trains a whole study and writes none; run `rekindle train` under `orion hunt`" in said
    assert "env -u ORION_RESULTS_PATH rekindle tune" in said
    assert not under_orion.exists()
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_a_trial_that_the_database_does_not_know_has_no_parent(
    under_orion: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command._parent(command.trial_row()) is None  # Orion names no trial
    monkeypatch.setenv("ORION_TRIAL_ID", "abc")
    monkeypatch.setenv("ORION_EXPERIMENT_ID", "3")
    Store(sqlite_url).close()
    with pytest.raises(NoParent, match=r"has no such result for trial abc of experiment 3; keep Orion's"):
        command._parent(command.trial_row())
    command.note_failure(command.trial_row())  # nowhere to note it, which is no failure of the trial's


def test_train_reports_to_orion_and_carries_on(under_orion: Path, sqlite_url: str) -> None:
    assert cli.main([*TRAIN, "--set:optimizer.lr", "1e-3", "--epochs", "1.0"]) == 0
    assert cli.main([*TRAIN, "--set:optimizer.lr", "1e-3", "--epochs", "2"]) == 0
    result = {row["name"]: row["value"] for row in json.loads(under_orion.read_text())}
    assert (result["rk_resumed"], result["rk_epochs"]) == (1, 2)
    with Store(sqlite_url) as store:
        assert result["negative_return"] == -store.metrics(result["rk_uid"])[-1][1]["return"]


def test_environment_steps_are_epochs_under_orion(under_orion: Path) -> None:
    assert cli.main([*TRAIN, "--env-steps", "64"]) == 0  # of epochs of 32 steps
    result = {row["name"]: row["value"] for row in json.loads(under_orion.read_text())}
    assert result["rk_epochs"] == 2


def test_a_recorded_table_ends_under_orion_where_it_ends(under_orion: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseLearner, "most_epochs", classmethod(lambda cls, env: 1))
        assert cli.main([*TRAIN]) == 0
        result = {row["name"]: row["value"] for row in json.loads(under_orion.read_text())}
        assert result["rk_epochs"] == 1
        assert cli.main([*TRAIN, "--epochs", "2"]) == 2


def test_inapplicable_hyperparameters_are_left_out_under_orion(under_orion: Path, sqlite_url: str) -> None:
    given = ["--set:optimizer.name", "adam", "--set:optimizer.momentum", "0.5"]
    assert cli.main([*TRAIN, *given, "--epochs", "1"]) == 0
    uid = json.loads(under_orion.read_text())[1]["value"]
    with Store(sqlite_url) as store:
        assert "optimizer.momentum" not in identity(store, uid)


@pytest.mark.parametrize(
    ("error", "status"),
    [(Diverged("nan"), 1), (Stopped("asked to"), 130), (KeyboardInterrupt(), 130), (ValueError("bad"), 2)],
)
def test_the_exit_status_says_broken_or_interrupted(
    under_orion: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(PPOLearner, "run_epoch", fails)
    assert cli.main([*TRAIN, "--epochs", "1"]) == status
    assert str(error) in capfd.readouterr().err
    assert not under_orion.exists()


@pytest.mark.slow
def test_snapshots_apply_under_orion_too(under_orion: Path, sqlite_url: str) -> None:
    assert cli.main([*TRAIN, "--epochs", "2", "--snapshots", "best"]) == 0
    uid = json.loads(under_orion.read_text())[1]["value"]
    with Store(sqlite_url) as store:
        assert ["return" in row for _, row in store.metrics(uid)] == [True, True]


def test_a_hunt_starts_warm_and_its_promoted_trials_carry_on(
    under_orion: Path, sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def told_of(*arguments: str) -> dict[str, Any]:
        assert cli.main([*TRAIN, *arguments]) == 0
        return {row["name"].removeprefix("rk_"): row["value"] for row in json.loads(under_orion.read_text())}

    source = told_of("--epochs", "2")["uid"]
    trial = ("--set:optimizer.lr", "1e-3", "--warm-start", f"{source}@2")
    low, high, again = (told_of(*trial, "--epochs", epochs) for epochs in ("1", "2", "1"))
    assert low["uid"] == high["uid"] != source
    assert [line["resumed"] for line in (low, high, again)] == [0, 1, 0]
    assert low["digest"] == again["digest"]
    flat = {name: value for name, value in TINY.items() if name != "model"}
    with Store(sqlite_url) as store:
        task = PPO("CartPole-v1", warm_start=store.load(source, 2)).init(optimizer={"lr": 1e-3}, **flat)
        task.fit(2)
    assert task.digest == high["digest"]
    under_orion.unlink()
    assert cli.main([*TRAIN, "--epochs", "1", "--warm-start", "nobody"]) == 2
    assert "nobody" in capfd.readouterr().err
    assert not under_orion.exists()


def test_under_orion_transient_failures_are_retried_and_others_break_the_trial(
    under_orion: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_epoch, failures = PPOLearner.run_epoch, [RuntimeError("an accident"), RuntimeError("another one")]

    def fails(*arguments: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return run_epoch(*arguments, **more)

    monkeypatch.setattr(PPOLearner, "run_epoch", fails)
    assert cli.main([*TRAIN, "--epochs", "1"]) == 1
    said = capfd.readouterr().err
    assert "tried again in 0 s: RuntimeError: another one" in said
    assert "error: RuntimeError: an accident" in said
    assert cli.main([*TRAIN, "--epochs", "1"]) == 0
    result = {row["name"]: row["value"] for row in json.loads(under_orion.read_text())}
    with Store(sqlite_url) as store:
        noted = [event.data["retry"] for event in store.events(result["rk_uid"]) if event.kind == "failed"]
    assert noted == [True, False]


def test_epochs_without_a_number_are_refused_under_orion(under_orion: Path) -> None:
    with pytest.raises(ValueError, match=r"fidelity\(1, 27\)"):
        _orion_epochs("1:27")
    assert [_orion_epochs(text) for text in ("9", "9.0", "9:9")] == [9, 9, 9]


@pytest.mark.slow
def test_the_orion_command_hunts_and_promotes(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "asha.yaml").write_text("experiment: {algorithm: {asha: {seed: 1}}}\n")
    priors = ["--set:optimizer.lr~loguniform(1e-5, 1e-2)", "--epochs~fidelity(1, 2, 2)"]
    command = ["hunt", "-n", "cartpole", "-c", "asha.yaml", "--exp-max-trials", "3", "rekindle", *TRAIN, *priors]
    said = orion_says(command, sqlite_url, tmp_path, forked=2)  # the third is promoted, in a program of its own
    trials = get_experiment("cartpole", storage=storage_of(sqlite_url)).fetch_trials_by_status("completed")
    assert len(trials) == 3, said
    assert {key for trial in trials for key in trial.params} == {"/set:optimizer", "/epochs"}
    assert sorted((told(trial)["resumed"], told(trial)["epochs"]) for trial in trials) == [(0, 1), (0, 1), (1, 2)]
    top = max(map(told, trials), key=lambda row: row["epochs"])
    with Store(sqlite_url) as store:
        assert undisturbed(identity(store, top["uid"]), 2).digest == top["digest"]


DEADLY = """
import os, signal, pathlib
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

deaths = pathlib.Path(__file__).with_name("deaths")

class Deadly(CartPoleEnv):
    def step(self, action):
        if deaths.stat().st_size:
            deaths.write_bytes(deaths.read_bytes()[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

gymnasium.register("Deadly-v0", Deadly, max_episode_steps=50)
"""


@pytest.mark.slow
def test_a_trial_whose_program_is_killed_is_tried_again(sqlite_url: str, tmp_path: Path) -> None:
    """Hyperband would wait for a broken one, and never end."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    (tmp_path / "deaths").write_bytes(b"x")
    (tmp_path / "orion.yaml").write_text("experiment: {algorithm: {hyperband: {seed: 1, repetitions: 1}}}\n")
    environment = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    program = ["rekindle", "train", "ppo", "deadly:Deadly-v0", *SMALL]
    priors = ["--set:optimizer.lr~loguniform(1e-5, 1e-2)", "--epochs~fidelity(1, 2, 2)"]
    command = ["hunt", "-n", "h", "-c", "orion.yaml", "--exp-max-trials", "5", *program, *priors]
    said = orion_says(command, sqlite_url, tmp_path, environment=environment)
    trials = get_experiment("h", storage=storage_of(sqlite_url)).fetch_trials()
    assert [trial.status for trial in trials] == ["completed"] * 5, said
    assert (tmp_path / "deaths").read_bytes() == b""


@pytest.mark.slow
def test_the_orion_command_shows_why_it_cannot_hunt_studies(sqlite_url: str, tmp_path: Path) -> None:
    program = ["rekindle", "tune", "surrogate", "--trials", "2", "--epochs", "1:3", "--set:lr~loguniform(1e-5, 1e-2)"]
    said = orion_says(["hunt", "-n", "x", *program], sqlite_url, tmp_path)
    assert "error: Orion waits for the result of one training" in said
    with Store(sqlite_url) as store:
        assert not store.studies()


@pytest.mark.slow
def test_the_orion_command_names_a_prior_that_it_cannot_express(sqlite_url: str, tmp_path: Path) -> None:
    command = ["hunt", "-n", "x", "rekindle", *TRAIN, "--set:gamma~near_one(0.9, 0.99)"]
    said = orion_says(command, sqlite_url, tmp_path)
    assert "'/set:gamma': 'near_one' does not correspond to a supported distribution" in said
