"""Hunts by several processes, on PostgreSQL, and of populations whose trials branch from each other."""

from __future__ import annotations

import logging
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import hanging
import pytest
from hunting import database_of, experiment_of, orion_says, run_killed
from orion.client import build_experiment, get_experiment
from orion.client.experiment import ExperimentClient
from orion.client.runner import prepare_trial_working_dir
from orion.core.utils.exceptions import LazyWorkers
from orion.core.worker.trial import Trial
from rekindle import PPO, fidelity
from rekindle.spaces.drivers.to_orion import from_params
from rekindle.studies.engine.branching import replay
from rekindle.studies.engine.lineage import lineage
from rekindle.studies.failures import FAILED, HUNG
from rekindle.studies.orion import OrionObjective, hunt, storage_of
from rekindle.studies.orion.algorithms import algorithm_config, changeable, grid_priors
from rekindle.studies.orion.db import RekindleSQL
from rekindle.studies.orion.hunts import _on_error, total_or_fidelity
from rekindle.studies.orion.trial_rows import NoParent, parent_of
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.store import Store
from rekindle.tasks.algorithms.ppo import PPOLearner
from rekindle.tasks.algorithms.surrogate import Surrogate
from rekindle.tasks.errors import Diverged, Hung

TINY: dict[str, Any] = {"epoch_steps": 32, "num_envs": 2, "num_steps": 16, "num_minibatches": 1, "update_epochs": 1}
MODEL = {"width": 8, "layers": 1, "activation": "tanh"}
SEARCH = ["optimizer.lr", "gamma"]
HALF = {
    "of_type": "TruncateExploit",
    "min_forking_population": 2,
    "truncation_quantile": 0.5,
    "candidate_pool_ratio": 0.5,
}
COUPLE = {"pbt": {"population_size": 2, "generations": 2, "exploit": HALF}}  # the worse one always copies the better


def start(url: str, algorithm: Any = "random", **options: Any) -> Any:
    options = {"name": "h", "max_trials": 3, "search": SEARCH, "idle_timeout": 20, **TINY, "model": MODEL, **options}
    return hunt(PPO, "CartPole-v1", storage=url, algorithm=algorithm, **options)


def told(trial: Trial) -> dict[str, Any]:
    return {result.name.removeprefix("rk_"): result.value for result in trial.results}


def values_of(trial: Trial) -> dict[str, Any]:
    return {name: value for name, value in trial.params.items() if name != "epochs"}


# Populations


def check_population(store: Store, trials: list[Trial]) -> int:
    """Every trial ended as its lineage says it must; returns how many had other hyperparameters than their parents."""
    by_id = {trial.id: trial for trial in trials}
    for trial in trials:
        row = told(trial)
        if trial.parent is None:
            assert row["resumed"] == 0
            continue
        parent = by_id[trial.parent]
        before = told(parent)
        assert row["resumed"] == before["epochs"] < row["epochs"]
        promoted = values_of(trial) == values_of(parent)
        assert (row["uid"] == before["uid"]) == promoted
        if not promoted:
            *_, link, _ = lineage(store, row["uid"])
            assert link.uid == before["uid"]
    uids = {told(trial)["uid"] for trial in trials}
    assert all(replay(store, uid).equal for uid in uids)
    return sum(len(lineage(store, uid)) > 1 for uid in uids)


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trial]]:
    """A database with a population, and its trials."""
    path = tmp_path_factory.mktemp("population") / "store.db"
    return path, breed(f"sqlite:///{path}")


def breed(url: str) -> list[Trial]:
    client = start(url, COUPLE, epochs=fidelity(1, 4, 2), max_trials=6)
    trials: list[Trial] = client.fetch_trials_by_status("completed")
    database_of(client.storage).close_connection()
    return trials


def check_population_in(url: str, trials: list[Trial]) -> None:
    assert sorted(told(trial)["epochs"] for trial in trials) == [1, 1, 2, 2, 4, 4]
    with Store(url) as store:
        assert check_population(store, trials) > 0


def test_a_population_continues_from_its_parents_states(population: tuple[Path, list[Trial]]) -> None:
    path, trials = population
    check_population_in(f"sqlite:///{path}", trials)


@pytest.mark.slow
def test_a_population_continues_from_its_parents_states_on_postgresql(postgres_url: str) -> None:
    check_population_in(postgres_url, breed(postgres_url))


def test_a_branch_ends_the_same_when_its_parents_state_is_gone_or_it_went_further_before(
    population: tuple[Path, list[Trial]], tmp_path: Path
) -> None:
    path, trials = population
    parents = {trial.id: trial for trial in trials}
    branched = next(t for t in trials if t.parent and values_of(t) != values_of(parents[t.parent]))
    for copy in ("gone.db", "further.db"):  # with what is still in the log of another connection
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / copy)) as target:
            source.backup(target)
    elsewhere, here = (f"sqlite:///{tmp_path / copy}" for copy in ("gone.db", "further.db"))
    with Store(elsewhere) as store:
        for uid in (told(branched)["uid"], told(parents[branched.parent])["uid"]):
            with store.open(uid, lineage(store, uid)[-1].identity) as lease:
                lease.discard()
    options = {"search": SEARCH, "epochs": fidelity(1, 4, 2), **TINY, "model": MODEL}
    for place, before in ((elsewhere, "gone"), (here, "further")):
        mine = OrionObjective(PPO, "CartPole-v1", storage=place, **options)
        again = {row["name"].removeprefix("rk_"): row["value"] for row in mine(trial=branched, **branched.params)}
        mine.close()
        assert {**again, "resumed": 0} == {**told(branched), "resumed": 0}, before


def test_a_hunt_of_a_user_without_a_name_says_how_to_give_one(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")  # as in a container

    monkeypatch.setattr("getpass.getuser", nobody)
    with pytest.raises(ValueError, match=r"Orion stores who hunts, but user \d+ has no name .*; set one"):
        start(sqlite_url, max_trials=1)


def test_a_parent_that_is_not_in_the_database_is_an_error_and_no_new_beginning(url: str) -> None:
    client = start(url, max_trials=1)
    [trial] = client.fetch_trials()
    assert parent_of(url, client.id, trial.id) is None
    child = trial.branch(params={"one_minus_gamma": 0.01})
    mine = OrionObjective(PPO, "CartPole-v1", storage=url, search=SEARCH, **TINY, model=MODEL)
    with pytest.raises(NoParent, match="keep Orion's experiments and the tasks in one database"):
        mine(trial=child, **child.params)
    mine.close()


def test_a_promoted_trial_needs_no_parent_that_an_earlier_version_of_its_experiment_has(sqlite_url: str) -> None:
    for algorithm, needs in (("asha", False), ("pbt", True)):
        client = build_experiment(
            algorithm,
            space={"x": "uniform(0, 1)", "e": "fidelity(1, 4)"},
            algorithm=algorithm,
            storage=storage_of(sqlite_url),
        )
        child = client.insert({"x": 0.5, "e": 1}).branch(params={"e": 4})
        experiment_of(client).register_trial(child)
        database_of(client.storage).remove("trials", {"experiment": client.id, "parent": None})
        if needs:
            with pytest.raises(NoParent):
                parent_of(sqlite_url, client.id, child.id)
        else:
            assert parent_of(sqlite_url, client.id, child.id) is None
        database_of(client.storage).close_connection()


@pytest.mark.parametrize(("low", "high", "base", "generations"), [(1, 27, 3, 7), (1, 100, 2, 10), (1, 2, 2, 1)])
def test_no_generation_of_a_population_is_empty(low: int, high: int, base: int, generations: int) -> None:
    assert algorithm_config("pbt", 3, fidelity(low, high, base)) == {"pbt": {"seed": 3, "generations": generations}}


def test_a_population_searches_what_may_change_and_nothing_else(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_steps decides shapes or loop counts"):
        hunt(
            PPO,
            "CartPole-v1",
            name="h",
            storage=sqlite_url,
            max_trials=2,
            algorithm="pbt",
            epochs=fidelity(1, 4, 2),
            search=["num_steps"],
        )
    assert not list(tmp_path.iterdir())
    space = Surrogate(None).get_space()
    assert {"noise", "width"} < space.flat().keys(), "of one value, and structural"
    assert changeable(space, None) == ["lr", "gamma"]


def test_a_population_of_a_task_with_constants_is_hunted_by_its_name(sqlite_url: str) -> None:
    client = hunt("surrogate", name="h", storage=sqlite_url, max_trials=4, algorithm=COUPLE, epochs=fidelity(1, 4, 2))
    assert {name for trial in client.fetch_trials() for name in trial.params} == {"lr", "one_minus_gamma", "epochs"}


# Several processes


@pytest.mark.slow
def test_the_processes_of_a_hunt_share_its_trials(sqlite_url: str) -> None:
    epochs = fidelity(1, 2, 2)
    client = start(sqlite_url, {"hyperband": {"repetitions": 1}}, epochs=epochs, max_trials=30, workers=2)
    rows = [told(trial) for trial in client.fetch_trials_by_status("completed")]
    assert sorted((row["epochs"], row["resumed"]) for row in rows) == [(1, 0), (1, 0), (2, 0), (2, 0), (2, 1)]


def _work(url: str, max_trials: int) -> None:
    start(url, {"asha": {"seed": 1}}, epochs=fidelity(1, 4, 2), max_trials=max_trials, idle_timeout=600)


@pytest.mark.parametrize(
    ("fixture", "count", "kills"), [("postgres_url", 2, 1), pytest.param("sqlite_url", 4, 2, marks=pytest.mark.slow)]
)
def test_a_hunt_is_exact_however_many_processes_train_it_and_some_are_killed(
    request: pytest.FixtureRequest, wait_until: Callable[..., None], fixture: str, count: int, kills: int
) -> None:
    url, max_trials = request.getfixturevalue(fixture), 3 + kills
    client = build_experiment("watch", space={"x": "uniform(0, 1)"}, storage=storage_of(url))
    run_killed(partial(_work, url, max_trials), database_of(client.storage), max_trials, count, kills, wait_until, 900)
    trials = get_experiment("h", storage=storage_of(url)).fetch_trials()
    rows = [told(trial) for trial in trials if trial.status == "completed"]
    assert len(rows) == max_trials
    assert {trial.status for trial in trials} <= {"completed", "new"}
    assert len({(row["uid"], row["epochs"]) for row in rows}) == max_trials
    longest = max(rows, key=lambda row: row["epochs"])
    with Store(url) as store:
        assert replay(store, longest["uid"]).digest == longest["digest"]
    database_of(client.storage).close_connection()


@pytest.mark.slow
def test_a_worker_waits_for_others_but_not_for_nobody(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, wait_until: Callable[..., None]
) -> None:
    caplog.set_level(logging.INFO, "rekindle")
    start(sqlite_url, max_trials=1)
    other = build_experiment("h", storage=storage_of(sqlite_url), max_trials=2)
    trial = other.suggest()
    results: list[Any] = []
    worker = threading.Thread(target=lambda: results.append(start(sqlite_url, max_trials=2, idle_timeout=1)))
    worker.start()
    wait_until(lambda: "until other workers have trained 1 trials" in caplog.text)
    other.release(trial)
    worker.join(600)
    assert [fetch_trial.status for fetch_trial in results[0].fetch_trials()] == ["completed", "completed"]


def test_a_hunt_whose_algorithm_waits_for_a_broken_trial_ends_with_an_error(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise Diverged("the loss became nan")

    workon = ExperimentClient.workon

    def impatient(self: ExperimentClient, *arguments: Any, **more: Any) -> Any:
        return workon(self, *arguments, **{**more, "idle_timeout": more["idle_timeout"] / 20})

    monkeypatch.setattr(ExperimentClient, "workon", impatient)
    monkeypatch.setattr(PPOLearner, "run_epoch", fails)
    hyperband = {"hyperband": {"repetitions": 1}}
    with pytest.raises(LazyWorkers, match="idle"):
        start(sqlite_url, hyperband, epochs=fidelity(1, 2, 2), max_trials=20, idle_timeout=1)


# The command line


@pytest.mark.slow
def test_the_orion_command_trains_a_population_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "pbt.yaml").write_text(
        "experiment:\n  algorithm:\n    pbt: {seed: 1, population_size: 2, generations: 1, exploit: {of_type: "
        "TruncateExploit, min_forking_population: 2, truncation_quantile: 0.5, candidate_pool_ratio: 0.5}}\n"
    )
    settings = [f"--set:{name}={value}" for name, value in TINY.items()]
    priors = ["--set:optimizer.lr~loguniform(1e-5, 1e-2)", "--epochs~fidelity(1, 2, 2)"]
    command = ["hunt", "-n", "pbt", "-c", "pbt.yaml", "--exp-max-trials", "4", "rekindle"]
    said = orion_says([*command, "train", "ppo", "CartPole-v1", *settings, *priors], postgres_url, tmp_path)
    trials = get_experiment("pbt", storage=storage_of(postgres_url)).fetch_trials_by_status("completed")
    assert len(trials) == 4, said
    with Store(postgres_url) as store:
        by_id = {trial.id: trial for trial in trials}
        assert [told(t)["resumed"] == told(by_id[t.parent])["epochs"] for t in trials if t.parent] == [True, True]
        branched = [uid for uid in {told(t)["uid"] for t in trials} if len(lineage(store, uid)) == 2]
        assert [replay(store, uid).equal for uid in branched] == [True]
    assert list(tmp_path.glob("pbt-v1*")) == []


def test_a_trial_that_hung_three_times_in_a_row_is_broken_and_the_hunt_continues(sqlite_url: str) -> None:
    params = {"optimizer.lr": 1e-3, "one_minus_gamma": 0.1}
    mine = OrionObjective(PPO, "CartPole-v1", storage=sqlite_url, search=SEARCH, **TINY, model=MODEL)
    identity = mine.make(None).init(**from_params(mine.space, params)).identity
    for _ in range(3):  # as the watchers of `rekindle train` do
        mine.store.open(identity.uid, identity.to_json())
        assert mine.store.evict_hung(str(Owner.current()), lambda: Hung("in a server")) == [identity.uid]
    with pytest.raises(Hung, match="3 times in a row it made no step for too long") as hung:
        mine(**params)
    assert "Hung: 3 times in a row" in mine.store.events(identity.uid)[-1].data["error"]
    assert _on_error(None, None, hung.value, 1) is False
    mine.close()
    assert len(start(sqlite_url, max_trials=1).fetch_trials_by_status("completed")) == 1


def hangs_in(folder: Path) -> dict[str, str]:
    """Return the variables of programs that hang as the files of a folder say."""
    path = [str(Path(hanging.__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {hanging.VARIABLE: str(folder), "PYTHONPATH": os.pathsep.join(path)}


@pytest.mark.slow
def test_the_orion_command_tries_a_trial_again_whose_program_hung(sqlite_url: str, tmp_path: Path) -> None:
    hanging.hang(tmp_path / "hangs", "in C")
    environment = hangs_in(tmp_path / "hangs")
    settings = [f"--set:{name}={value}" for name, value in {**TINY, "epoch_steps": 64}.items()]
    command = ["hunt", "-n", "h", "--exp-max-trials", "2", "rekindle", "train", "ppo", "hanging:Hanging-v0", *settings]
    command += ["--epochs", "3", "--stuck", "3s", "--set:optimizer.lr~loguniform(1e-5, 1e-2)"]
    said = orion_says(command, sqlite_url, tmp_path, environment=environment)
    trials = get_experiment("h", storage=storage_of(sqlite_url)).fetch_trials()
    assert [trial.status for trial in trials] == ["completed"] * 2, said
    assert len([*(tmp_path / "hangs").glob("taken-*")]) == 1
    with Store(sqlite_url) as store:
        failures = [e.data for t in trials for e in store.events(told(t)["uid"]) if e.kind == FAILED]
    assert [(failure["kind"], failure["retry"]) for failure in failures] == [(HUNG, True)]


@pytest.mark.slow  # the command starts an interpreter for each attempt
def test_the_orion_command_tries_a_trial_again_whose_step_outlasts_its_grace(
    sqlite_url: str, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    folder = tmp_path / "hangs"
    hanging.hang(folder, "asleep", after=80)  # in the second epoch
    settings = [f"--set:{name}={value}" for name, value in {**TINY, "epoch_steps": 64}.items()]
    command = ["hunt", "-n", "h", "--exp-max-trials", "1", "rekindle", "train", "ppo", "hanging:Hanging-v0", *settings]
    command += ["--epochs", "3", "--grace", "1", "--set:optimizer.lr~loguniform(1e-5, 1e-2)"]

    def preempt() -> None:
        wait_until(lambda: [*folder.glob("taken-*")])
        [taken] = folder.glob("taken-*")
        os.kill(int(taken.name.removeprefix("taken-")), signal.SIGTERM)

    def run() -> tuple[str, list[Trial]]:
        # Nothing is forked: a fork would go on counting the steps of this process, and know how to restore its states.
        said = orion_says(command, sqlite_url, tmp_path, environment=hangs_in(folder))
        return said, get_experiment("h", storage=storage_of(sqlite_url)).fetch_trials()

    scheduler = threading.Thread(target=preempt)
    scheduler.start()
    said, [trial] = run()
    scheduler.join()
    assert "a step takes longer than --grace 1: exits with what was saved last" in said
    assert trial.status == "interrupted", said
    with Store(sqlite_url) as store:
        [before] = store.tasks()
        assert before.epochs >= 1
        assert not store.holders()
        said, [trial] = run()
        assert trial.status == "completed", said
        assert (told(trial)["uid"], told(trial)["epochs"], told(trial)["resumed"]) == (before.uid, 3, 1)
        assert replay(store, before.uid).equal
        assert not {event.kind for event in store.events(before.uid)} & {"takeover", FAILED}  # nobody was killed


def test_a_hunt_keeps_no_password_of_its_command_line_and_logs_none_of_the_environment(
    sqlite_url: str, postgres_url: str, tmp_path: Path
) -> None:
    url = "postgresql://me:sesame@127.0.0.1:1/studies"
    command = ["hunt", "-n", "h", "rekindle", "train", "ppo", "CartPole-v1", "--set:gamma~uniform(0.9, 0.99)"]
    said = orion_says([*command, "--storage", url], sqlite_url, tmp_path)
    assert "Error: Orion stores the command line of a hunt, and `orion info` shows it, but" in said
    assert "use PGPASSWORD or ~/.pgpass" in said
    assert "sesame" not in said
    assert RekindleSQL(host=sqlite_url).count("experiments") == 0
    said = orion_says(["-vv", "status", "-n", "h"], postgres_url, tmp_path, environment={"PGPASSWORD": "sesame"})
    assert "::DEBUG::" in said
    assert "sesame" not in said


def test_a_promoted_trial_needs_no_directory_of_its_parents(sqlite_url: str, tmp_path: Path) -> None:
    """As when another machine promotes it, or the hunt that trained the lower rung was stopped."""
    client = build_experiment(
        "c",
        space={"x": "uniform(0, 1)"},
        storage=storage_of(sqlite_url),
        max_trials=5,
        working_dir=str(tmp_path / "gone"),
    )
    lower = client.insert({"x": 0.5}, results=[{"name": "r", "type": "objective", "value": 1.0}])
    experiment_of(client).register_trial(client.get_trial(lower).branch(params={"x": 0.25}))
    client.working_dir = str(tmp_path / "here")
    for program, spared in ((["rekindle", "train"], True), (["./mine.py"], False)):
        experiment_of(client).metadata["user_args"] = program
        promoted = client.suggest()
        assert promoted.parent == lower.id
        if spared:
            prepare_trial_working_dir(client, promoted)
            assert Path(promoted.working_dir).is_dir()
            shutil.rmtree(tmp_path / "here")
        else:
            with pytest.raises(FileNotFoundError):
                prepare_trial_working_dir(client, promoted)
        client.release(promoted)
    database = database_of(client.storage)
    assert isinstance(database, RekindleSQL)
    database.close_connection()


def test_divergence_and_hangs_break_a_trial_and_other_errors_end_the_hunt() -> None:
    for error in (Diverged("loss became NaN"), Hung("no step")):
        assert _on_error(None, None, error, 1) is False
    with pytest.raises(ZeroDivisionError):
        _on_error(None, None, ZeroDivisionError(), 1)


@pytest.mark.parametrize(
    ("written", "meaning"),
    [
        (9, 9),
        ("9", 9),
        ("1:27:3", fidelity(1, 27, 3)),
        ((1, 27, 3), fidelity(1, 27, 3)),
        (fidelity(3, 3), fidelity(3, 3)),
    ],
)
def test_epochs_are_written_as_for_studies(written: Any, meaning: Any) -> None:
    assert total_or_fidelity(written) == meaning


def test_no_end_of_a_grid_lies_beyond_its_prior() -> None:
    rng, beyond = random.Random(2), 0
    for _ in range(200):
        low = 10 ** rng.uniform(-6, 0)
        high = low * 10 ** rng.uniform(0.5, 4)
        beyond += math.exp(math.log(low)) < low or math.exp(math.log(high)) > high
        options = {"lr": f"loguniform({low!r}, {high!r}, precision=None, default_value={low!r})", "n": "uniform(1, 2)"}
        result = grid_priors(options)
        assert result["n"] == options["n"]
        prior = re.fullmatch(r"loguniform\((\S+), (\S+), precision=None\)", result["lr"])
        assert prior is not None
        ends = [math.exp(math.log(float(text))) for text in prior.groups()]
        assert low <= ends[0] <= low * (1 + 1e-12)
        assert high * (1 - 1e-12) <= ends[1] <= high
    assert beyond > 20
