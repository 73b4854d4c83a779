"""The algorithm as a hyperparameter: its space, and tasks that are those of the chosen algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
from rekindle import EnvSpec
from rekindle.spaces import flatten
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig
from rekindle.tasks import load
from rekindle.tasks.algorithms import auto
from rekindle.tasks.errors import UnsupportedSpace
from studying import TINY

BOX = ("ppo", "sac", "td3", "tqc", "crossq", "trpo", "ars")
DISCRETE = ("ppo", "sac", "dqn", "qrdqn", "pqn", "trpo", "ars")
REPLAY: dict[str, Any] = {**tiny.REPLAY, "num_envs": 2, "learning_starts": 32, "model.width": 8}
OWN: dict[str, dict[str, Any]] = {"ppo": TINY, "pqn": TINY, "trpo": TINY, "ars": {"epoch_steps": 64, "deltas": 4}}
OWN |= dict.fromkeys(("sac", "dqn", "qrdqn"), REPLAY)
FIXED = {f"{name}.{path}": value for name, values in OWN.items() for path, value in values.items()}


@pytest.mark.parametrize(("env", "names"), [("Pendulum-v1", BOX), ("CartPole-v1", DISCRETE)])
def test_algorithms_are_those_that_fit_the_environment(env: str, names: tuple[str, ...]) -> None:
    space = load("auto").learner.space_in(EnvSpec.of(env))
    assert auto.algorithms_in(EnvSpec.of(env)) == names
    assert tuple(space) == ("algorithm", *names)
    for name in names:
        defaults, declared = space.validate({"algorithm": name}), load(name).learner.space_in(EnvSpec.of(env))
        assert defaults == {"algorithm": name, name: declared.defaults()}


def test_an_environment_in_which_none_learns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "ALGORITHMS", ("td3", "tqc"))
    auto.algorithms_in.cache_clear()
    with pytest.raises(UnsupportedSpace, match="one of td3, tqc must learn there, but TD3 on CartPole"):
        auto.algorithms_in(EnvSpec("CartPole-v1"))
    auto.algorithms_in.cache_clear()


def test_a_missing_environment_is_said_once() -> None:
    with pytest.raises(UnsupportedSpace, match=r"^Auto learns in an environment, such as CartPole-v1, but got none$"):
        auto.algorithms_in(EnvSpec(""))


@pytest.mark.parametrize("name", DISCRETE)
def test_a_trial_is_the_task_of_its_algorithm(name: str) -> None:
    config = study_config(load("auto"), "CartPole-v1", fixed=FIXED, trials=7, epochs="1", seed=5)
    assert [first["algorithm"] for first in config.first_trials] == list(DISCRETE)
    [first] = [first for first in config.first_trials if first["algorithm"] == name]
    values = {**config.fixed, **first}
    trial = config.make_task(load("auto"), values, None)
    settings = {path.removeprefix(f"{name}."): value for path, value in first.items() if path.startswith(f"{name}.")}
    task = load(name)("CartPole-v1", seed=5).init(**OWN[name])
    assert type(trial) is load(name)
    assert trial.uid == task.uid == config.identity(load("auto"), values).uid
    assert flatten(trial.identity.hyperparameters).items() >= settings.items()
    assert trial.fit(1) == task.fit(1)
    assert trial.digest == task.digest


def test_a_single_training_names_its_algorithm() -> None:
    with pytest.raises(ValueError, match=r"auto chooses an algorithm in a study .* name it: ppo, sac"):
        load("auto")("CartPole-v1").init()


def test_a_population_has_one_algorithm() -> None:
    with pytest.raises(BadConfig, match=r"learn by one algorithm, but auto chooses among several; fix it \(--set algo"):
        study_config(load("auto"), "CartPole-v1", scheduler="pbt")
    config = study_config(load("auto"), "CartPole-v1", scheduler="pbt", fixed={"algorithm": "dqn"})
    assert {name.partition(".")[0] for name in config.open} == {"dqn"}


def test_a_prior_limits_the_algorithms() -> None:
    config = study_config(load("auto"), "CartPole-v1", trials=8, priors={"algorithm": "choices(['dqn', 'ppo'])"})
    assert {name.partition(".")[0] for name in config.open} == {"algorithm", "ppo", "dqn"}
    assert [values["algorithm"] for values in config.portfolio] == ["ppo", "dqn", *["ppo"] * 4, "dqn"]  # and a repeat
    assert np.isin([config.searched.sample(seed)["algorithm"] for seed in range(20)], ["ppo", "dqn"]).all()
