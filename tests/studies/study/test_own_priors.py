"""Studies over user-defined ranges: on the command line, in a population, and in a user's own Optuna study."""

from __future__ import annotations

import json
from collections.abc import Callable

import optuna
import pytest
from rekindle import PPO, EnvSpec, Objective
from rekindle.spaces import flatten, unflatten
from rekindle.studies.engine.checked_config import make_population
from rekindle.studies.study.searched import open_space
from rekindle.tasks import load
from studying import TINY

Cli = Callable[..., tuple[int, str, str]]
SETTINGS = [word for name, value in TINY.items() if name != "num_envs" for word in ("--set", f"{name}={value}")]


def tune(url: str, *more: str) -> list[str]:
    common = [
        "tune",
        "ppo",
        "CartPole-v1",
        "--trials",
        "4",
        "--epochs",
        "1",
        "--workers",
        "1",
        "--sampler",
        "random",
        "--cohort",
        "1",
    ]
    return [*common, "--storage", url, "--study", "own", "--json", *SETTINGS, *more]


@pytest.mark.slow
def test_a_study_draws_from_the_priors_that_it_is_given(sqlite_url: str, cli: Cli) -> None:
    asked = tune(sqlite_url, "--prior", "optimizer.lr=loguniform(1e-6, 1e-5)", "--prior", "num_envs=ordinal(2, 4)")
    status, out, errors = cli(*asked)
    assert status == 0, errors
    study = json.loads(out)
    drawn = [trial["hyperparameters"] for trial in study["trials"]]
    assert all(1e-6 <= values["optimizer.lr"] <= 1e-5 for values in drawn)
    assert {values["num_envs"] for values in drawn} == {2, 4}
    assert len({values["gamma"] for values in drawn}) > 1  # what has its own range is searched as ever
    assert "num_envs" not in study["fixed"]
    assert json.loads(cli(*asked)[1]) == study
    status, _, errors = cli(*tune(sqlite_url, "--prior", "optimizer.lr=loguniform(1e-6, 1e-4)", "--set", "num_envs=2"))
    assert status == 2
    assert "space" in errors


def test_with_search_nothing_else_is_searched(sqlite_url: str, cli: Cli) -> None:
    status, out, errors = cli(*tune(sqlite_url, "--prior", "num_envs=ordinal(2, 4)", "--search", "gamma"))
    assert status == 0, errors
    drawn = [trial["hyperparameters"] for trial in json.loads(out)["trials"]]
    varied = {name for name in drawn[0] if len({str(values.get(name)) for values in drawn}) > 1}
    assert varied <= {"gamma", "num_envs"}
    assert "gamma" in varied


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ("optimizer.rl=uniform(0, 1)", "there is no hyperparameter 'optimizer.rl' that is open; did you mean"),
        ("critic.lr=loguniform(1e-5, 1e-3)", "the prior of critic.lr needs critic.name"),
        ("optimizer.lr=loguniform(1, 1000)", "optimizer.lr must be a number in [0.0, 100.0], not 1000.0"),
        ("optimizer.lr", "must be written NAME=PRIOR, such as"),
        ("model.std_init=uniform(0.5, 1)", "ppo: model.std_init changes nothing in CartPole-v1, but has a prior"),
        ("epoch_steps=ordinal(64, 128)", "there is no hyperparameter 'epoch_steps' that is open"),
    ],
)
def test_invalid_options_are_reported_in_one_line_and_create_no_study(
    sqlite_url: str, cli: Cli, prior: str, message: str
) -> None:
    status, out, errors = cli(*tune(sqlite_url, "--prior", prior))
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_population_explores_within_them() -> None:
    fixed = unflatten(TINY)
    priors = {"optimizer.lr": "loguniform(1e-6, 1e-5)", "target_kl": "loguniform(0.01, 0.02)"}
    config = make_population(load("ppo"), "CartPole-v1", epochs=4, interval=2, population=3, fixed=fixed, priors=priors)
    assert {"optimizer.lr", "target_kl"} <= set(config.open)
    for seed in range(5):
        values = flatten(config.searched.sample(seed))
        assert 0.01 <= values["target_kl"] <= 0.02
        assert 1e-6 <= values["optimizer.lr"] <= 1e-5
    with pytest.raises(ValueError, match=r"model\.width is structural"):
        make_population(load("ppo"), "CartPole-v1", epochs=4, priors={"model.width": "ordinal(16, 32)"})


def test_an_objective_suggests_from_them(sqlite_url: str) -> None:
    priors = {"optimizer.lr": "loguniform(1e-6, 1e-5)", "use_sde": "choices(False, True)"}
    objective = Objective(PPO, "Pendulum-v1", epochs=1, storage=sqlite_url, priors=priors, **unflatten(TINY))
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1))
    study.optimize(objective, n_trials=2)
    assert all(1e-6 <= trial.params["optimizer.lr"] <= 1e-5 for trial in study.trials)
    assert all(isinstance(trial.params["use_sde"], bool) for trial in study.trials)


WHOLE = "uniform(1, 10, discrete=True)"
PYRADO: dict[str, dict[str, str]] = {
    "ppo": {
        "gamma": "uniform(0.98, 1)",
        "gae_lambda": "uniform(0.95, 1)",
        "clip_coef": "uniform(0.05, 0.2)",
        "update_epochs": WHOLE,
        "critic.name": "choices('joint', 'separate')",
        "critic.update_epochs": WHOLE,
        "critic.lr": "loguniform(1e-5, 1e-3)",
        "optimizer.lr": "loguniform(1e-5, 1e-3)",
        "max_grad_norm": "maybe(ordinal(1.0, 5.0))",
        "model.std_init": "uniform(0.5, 1)",
        "model.width": "ordinal(16, 32, 64)",
        "model.activation": "choices('tanh', 'relu')",
    },
    "ppo2": {"vf_coef": "uniform(0.2, 2)", "ent_coef": "loguniform(1e-6, 1e-2)"},
    "a2c": {"min_rollouts": "uniform(5, 40, discrete=True)"},
    "sac": {
        "tau": "uniform(1e-9, 0.01)",
        "gamma": "uniform(0.99, 1)",
        "entropy.alpha": "uniform(0.1, 0.9)",
        "entropy.learn": "choices(True, False)",
        "target_update_interval": "choices(1, 5)",
        "num_updates": "choices(1, 5)",
        "batch_size": "ordinal(128, 256, 512)",
        "optimizer.lr": "loguniform(1e-5, 1e-3)",
        "buffer_size": "loguniform(1000, 100000, discrete=True)",
    },
}


@pytest.mark.parametrize("task", PYRADO)
def test_the_ranges_of_pyrados_studies_can_be_searched(task: str) -> None:
    algorithm = load(task)
    space = open_space(algorithm, EnvSpec("Pendulum-v1"), {}, PYRADO[task])
    assert set(PYRADO[task]) <= set(space.flat())
    for seed in range(10):
        algorithm.learner.hyperparameters.validate(space.sample(seed))
