"""Presets: valid for their tasks and environments, with a source, and used by studies and trainings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from rekindle.spaces import flatten, unflatten
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.errors import BadConfig
from rekindle.studies.study.presets import preset_values, presets
from rekindle.tasks import load
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.identity import TaskIdentity

ALL = [(task, name) for task in ("ppo", "a2c", "dqn", "qrdqn", "sac") for name in presets(task)]


@pytest.mark.parametrize(("task", "name"), ALL)
def test_a_preset_is_valid_where_it_was_found(task: str, name: str) -> None:
    preset, algorithm = presets(task)[name], load(task)
    assert "rl-baselines3-zoo" in preset.source or "arXiv:" in preset.source
    for env in preset.envs:
        spec = EnvSpec.of(env)
        algorithm.learner.space_in(spec)
        result = TaskIdentity.of(algorithm, spec.to_json(), 0, unflatten(preset.values)).hyperparameters
        assert {key: flatten(result)[key] for key in preset.values} == preset.values


def test_a_study_tries_a_preset_first_and_searches_on() -> None:
    ppo = load("ppo")
    config = study_config(ppo, "CartPole-v1", epochs=1, preset="cartpole", fixed={"gamma": 0.9})
    [first] = config.options["known"]
    complete = config.identity(ppo, {**config.fixed, **first}).hyperparameters
    wanted = {**preset_values("ppo", "cartpole"), "gamma": 0.9}
    assert {name: flatten(complete)[name] for name in wanted} == wanted
    assert {"gae_lambda", "optimizer.lr", "clip_coef"} <= set(config.open)
    assert not {"gamma", "num_envs", "ent_coef"} & set(config.open)  # fixed, never searched, outside the search
    alone = study_config(ppo, "CartPole-v1", epochs=1, preset="cartpole", search=["gae_lambda"])
    assert alone.open == ["gae_lambda"]
    assert alone.identity(ppo, {**alone.fixed, **alone.options["known"][0]}).hyperparameters["gamma"] == 0.98
    population = study_config(ppo, "CartPole-v1", epochs=6, preset="cartpole", scheduler="pbt")
    assert flatten(population.fixed)["update_epochs"] == 20


def test_a_preset_outside_a_range_of_the_users_is_refused() -> None:
    with pytest.raises(
        BadConfig,
        match=r"--preset cartpole tries its values first, so the search must include them, but gamma must be a number "
        r"in \[0.9, 0.95\], not 0.98; widen the range of gamma, replace it by --set gamma=0.98, or leave --preset out",
    ):
        study_config(load("ppo"), "CartPole-v1", epochs=1, preset="cartpole", priors={"gamma": "uniform(0.9, 0.95)"})


def test_unknown_presets_are_told_with_those_that_are_known(cli: Callable[..., Any]) -> None:
    with pytest.raises(BadConfig, match=r"a preset of ppo must be one of cartpole, .*; did you mean cartpole"):
        preset_values("ppo", "cartpoles")
    with pytest.raises(BadConfig, match="surrogate has none"):
        preset_values("surrogate", "any")
    status, _, errors = cli("train", "ppo", "CartPole-v1", "--epochs", "1", "--preset", "cartpol")
    assert (status, "did you mean cartpole" in errors) == (2, True)


def test_a_training_takes_a_preset_and_what_is_typed_wins(cli: Callable[..., Any], tmp_path: Any) -> None:
    small = ["--set", "epoch_steps=256", "--set", "gamma=0.9"]
    command = ["train", "ppo", "CartPole-v1", "--epochs", "1", "--preset", "cartpole", *small, "--json"]
    status, out, errors = cli(*command, "--storage", f"sqlite:///{tmp_path / 'store.db'}")
    assert status == 0, errors
    result = flatten(json.loads(out)["hyperparameters"])
    assert (result["gae_lambda"], result["num_steps"], result["gamma"], result["epoch_steps"]) == (0.8, 32, 0.9, 256)
