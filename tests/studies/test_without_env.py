"""Studies of a task without an environment, with its own objective: command line, Optuna and Orion."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from rekindle import Objective, Store, tune
from rekindle.spaces import Space, SpaceError, categorical, ordinal
from rekindle.spaces.dimension import Dimension
from rekindle.studies.engine.branching import replay
from rekindle.studies.engine.lineage import task_at
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig
from rekindle.studies.orion import hunt
from rekindle.studies.statistics.intervals import mean_interval
from rekindle.tasks.algorithms.surrogate import SurrogateLearner
from rekindle.tasks.examples.digits import Digits, DigitsLearner
from studying import run

Cli = Callable[..., tuple[int, str, str]]
SMALL = {"width": 16, "batch_size": 128}
SET = [text for name, value in SMALL.items() for text in ("--set", f"{name}={value}")]


@pytest.mark.slow
def test_the_command_line_tunes_shows_evaluates_and_replays_it(cli: Cli, sqlite_url: str) -> None:
    status, printed, errors = cli(
        "tune",
        "digits",
        "--trials",
        "2",
        "--epochs",
        "1:2:2",
        "--workers",
        "1",
        *SET,
        "--json",
        "--storage",
        sqlite_url,
    )
    assert status == 0, errors
    study = json.loads(printed)
    assert (study["study"], study["env"], study["objectives"]) == ("digits", {}, {"accuracy": "maximize"})
    best = study["best"]
    assert best["objectives"].keys() == {"accuracy"}
    assert best["return"] is None
    task = Digits().init(**{name: best["hyperparameters"][name] for name in DigitsLearner.hyperparameters.flat()})
    task.fit(2)
    assert (task.uid, task.digest, task.evaluate()) == (best["uid"], best["digest"], best["objectives"]["accuracy"])
    output = {
        name: cli(*command, "--storage", sqlite_url)[1]
        for name, command in {
            "trials": ("trials", "digits"),
            "status": ("status",),
            "show": ("show", best["uid"]),
            "evaluate": ("evaluate", best["uid"]),
            "replay": ("replay", best["uid"]),
        }.items()
    }
    assert "digits: digits, seed 0" in output["trials"]
    assert f"{best['objectives']['accuracy']:.3g}"[:4] in output["trials"]
    assert "accuracy" in output["status"]
    assert "samples" in output["show"]
    assert "accuracy" in output["evaluate"]
    assert "equal" in output["replay"]


def test_objectives_of_episodes_are_refused_without_an_environment(cli: Cli, sqlite_url: str) -> None:
    for text, message in {
        "return": "objective 'return' is not one of accuracy, model_size, which have a direction of their own",
        "loos:minimize": "must be one of accuracy, model_size, samples, loss, but got 'loos'; did you mean loss",
    }.items():
        with pytest.raises(BadConfig, match=message):
            study_config(Digits, None, epochs=[1], objective=[text], fixed=SMALL)
    status, _, errors = cli("train", "ppo", "--epochs", "1", "--storage", sqlite_url)
    assert (status, errors) == (2, "rekindle: error: PPO learns in an environment, such as CartPole-v1, but got none\n")


class LossLearner(DigitsLearner):
    objective, direction = "error", "minimize"

    def score(self) -> np.ndarray:
        return 1 - super().score()


class Errors(Digits):
    learner = LossLearner


def test_the_lowest_minimized_metric_is_the_best(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    monkeypatch.setattr("rekindle.tasks.examples.digits.Digits", Errors)
    config = study_config(Errors, None, trials=3, epochs=[1], sampler="random", fixed={"batch_size": 128})
    assert config.options["objectives"] == {"error": "minimize"}
    run(sqlite_url, config)
    with Store(sqlite_url) as store:
        rows = store.segments("s")
        assert [row.score for row in rows] == [-row.objectives["error"] for row in rows if row.objectives]
        assert len({row.score for row in rows}) == 3
        task = Errors(storage=store, snapshots="best").init(**SMALL, lr=1.0)
        task.fit(4)
        errors = {epoch: metrics["error"] for epoch, metrics in task.history}
        assert task.best().metrics["error"] == min(errors.values())
        task.release()
        for snapshots, seed in (("best", 0), (None, 1)):
            task = Errors(storage=store, seed=seed, snapshots=snapshots).init(**SMALL, lr=1.0)
            task.fit(4)
            task.score_epoch()
            task.release()
            assert task_at(store, f"{task.uid}@best").epochs == task.best().epochs


@pytest.mark.parametrize(
    ("options", "results", "ends"),
    [
        ({}, (1.0, 0.8, 1.0), (0, 1)),
        ({"objective": ["clip_fraction:maximize"]}, (1.0, 0.8, 1.0), (0, 1)),
        ({"objective": ["clip_fraction:minimize"]}, (0.0, 0.2, 0.0), (0, 1)),
        ({"objective": ["cost:minimize"]}, (0.0, 0.2, 0.0), (-1, 2)),  # nothing is known of it
    ],
)
def test_intervals_end_where_no_result_can_be(
    monkeypatch: pytest.MonkeyPatch,
    sqlite_url: str,
    options: dict[str, Any],
    results: tuple[float, ...],
    ends: tuple[int, int],
) -> None:
    def measured(self: DigitsLearner) -> float:
        return results[self.seeds[0] % 3]

    def run_epoch(self: DigitsLearner, **_: Any) -> list[dict[str, float]]:
        self.epochs += 1
        return [dict.fromkeys(("clip_fraction", "cost"), measured(self))]

    monkeypatch.setattr(DigitsLearner, "score", lambda self: np.array([measured(self)]))
    monkeypatch.setattr(DigitsLearner, "run_epoch", run_epoch)
    with Store(sqlite_url) as store:
        how: dict[str, Any] = {"trials": 1, "epochs": 1, "scheduler": "none", "progress": False}
        study = tune("digits", storage=store, study="s", **how, **options)
        confirmed = study.confirm(top=1, seeds=3, progress=False)
    estimate = confirmed["candidates"][confirmed["winner"]]["estimate"]
    assert len(set(estimate["results"])) > 1
    alone = mean_interval(estimate["results"], [])
    assert alone.low < 0 or alone.high > 1  # Student's t knows no bounds
    assert (estimate["low"], estimate["high"]) == (max(alone.low, ends[0]), min(alone.high, ends[1]))


def test_a_population_explores_it_whose_members_train_alone(sqlite_url: str) -> None:
    config = study_config(Digits, None, epochs=[2], interval=1, population=4, fixed=SMALL, scheduler="pbt")
    run(sqlite_url, config)
    with Store(sqlite_url) as store:
        branches = [trial for trial in store.trials("s") if "start" in trial.attrs]
        assert branches
        assert replay(store, branches[0].uid).equal


def test_optuna_seeks_its_own_objective(sqlite_url: str) -> None:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(Objective(Digits, epochs=1, storage=sqlite_url, **SMALL), n_trials=2)
    for trial in study.trials:
        assert 0 < (trial.value or 0) <= 1
        assert [*trial.intermediate_values] == [1]


def test_orion_minimizes_what_is_left_to_its_objective(sqlite_url: str) -> None:
    experiment = hunt(Digits, storage=sqlite_url, name="d", max_trials=2, search=["lr"], idle_timeout=20, **SMALL)
    (trial, _) = experiment.fetch_trials()
    assert trial.objective.name == "negative_accuracy"
    assert -1 <= trial.objective.value < 0


@pytest.mark.parametrize(
    ("dimension", "value"),
    [(categorical("rbf", "linear", default="rbf"), "'rbf'"), (ordinal(1, None, default=1), "None")],
)
def test_values_that_are_no_numbers_are_structural_or_refused(
    sqlite_url: str, dimension: Dimension, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for structural in (False, True):
        dimensions = {**SurrogateLearner.hyperparameters, "kernel": replace(dimension, structural=structural)}
        monkeypatch.setattr(SurrogateLearner, "hyperparameters", Space(**dimensions))
        if structural:
            assert tune("surrogate", trials=6, epochs=1, storage=sqlite_url, progress=False).complete
        else:
            with pytest.raises(SpaceError, match=f"kernel must have numbers as values, .* structural=True, .* {value}"):
                tune("surrogate", trials=1, epochs=1, storage=sqlite_url, progress=False)
