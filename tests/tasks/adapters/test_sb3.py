"""Algorithms of Stable-Baselines3 as tasks: they resume exactly, and train as by themselves."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import stable_baselines3
import torch
from rekindle.studies.workers.goals import play
from rekindle.tasks import EnvSpec, load
from rekindle.tasks.adapters.sb3 import OWN, SPACES, NormalActionNoise, TaskVecEnv
from rekindle.tasks.envs import make_envs
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.rng import streams
from rekindle.tasks.testing import ExactnessSuite

ON: dict[str, Any] = {"epoch_steps": 128, "num_envs": 2, "n_steps": 32, "total_steps": 384}
OFF: dict[str, Any] = {
    "epoch_steps": 128,
    "num_envs": 2,
    "learning_starts": 50,
    "buffer_size": 500,
    "train_freq": 16,
    "total_steps": 384,
}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", {**ON, "n_epochs": 5, "learning_rate": 1e-2}),
    "A2C": ("CartPole-v1", {**ON, "n_steps": 8}),
    "DQN": ("CartPole-v1", {**OFF, "target_update_interval": 40, "train_freq": 4}),
    "SAC": ("Pendulum-v1", OFF),
    "TD3": ("Pendulum-v1", OFF),
    "DDPG": ("Pendulum-v1", OFF),
}


class TestPPO(ExactnessSuite):
    task = load("sb3:PPO")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["PPO"][1]
    inert = frozenset({"max_grad_norm"})


class TestSAC(ExactnessSuite):
    task = load("sb3:SAC")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["SAC"][1]


@pytest.mark.slow
class TestA2C(ExactnessSuite):
    task = load("sb3:A2C")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["A2C"][1]
    inert = frozenset({"max_grad_norm"})


@pytest.mark.slow
class TestDQN(ExactnessSuite):
    task = load("sb3:DQN")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["DQN"][1]


@pytest.mark.slow
class TestTD3(ExactnessSuite):
    task = load("sb3:TD3")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["TD3"][1]


@pytest.mark.slow
class TestDDPG(ExactnessSuite):
    task = load("sb3:DDPG")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["DDPG"][1]


@pytest.mark.parametrize("name", [*SPACES])
def test_parameters_are_those_of_one_call_of_learn(name: str) -> None:
    env, values = SMALL[name]
    task = load(f"sb3:{name}")(env, seed=3).init(**values)
    task.fit(1)
    task.fit(3)
    envs = TaskVecEnv(make_envs(env, [3], 2), EnvSpec.of(env))
    options = {key: value for key, value in (task.hyperparameters or {}).items() if key not in OWN}
    if "noise_std" in (task.hyperparameters or {}):
        options["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, task.hyperparameters["noise_std"]))
    seed, threads, before = streams.seed_of(3, "sb3"), torch.get_num_threads(), np.random.get_state()
    with torch.random.fork_rng():
        torch.set_num_threads(1)
        alone = getattr(stable_baselines3, name)("MlpPolicy", envs, seed=seed, device="cpu", **options)
        alone.learn(384)
        torch.set_num_threads(threads)
    np.random.set_state(before)
    model = task.member_ref().learner.model
    assert model.num_timesteps == alone.num_timesteps == 384
    for own, plain in zip(model.policy.parameters(), alone.policy.parameters(), strict=True):
        assert torch.equal(own, plain)


def test_unknown_algorithms_and_unsuitable_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match="sb3: has PPO, A2C, DQN, SAC, TD3, DDPG, but got 'PPOO'; did you mean PPO"):
        load("sb3:PPOO")
    with pytest.raises(UnsupportedSpace, match="sb3:SAC cannot act in CartPole-v1: The algorithm only supports"):
        load("sb3:SAC")("CartPole-v1").init().probe()


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_episodes_are_those_of_the_seed_and_change_no_state(name: str) -> None:
    task = load(f"sb3:{name}")("CartPole-v1").init(**SMALL[name][1])
    task.fit(1)
    digest, generator = task.digest, np.random.get_state()[1].copy()
    drawn = task.returns(4, deterministic=False)
    assert (drawn, task.returns(4, deterministic=False)) == (task.returns(4, deterministic=False), drawn)
    assert len({*task.returns(8, deterministic=False, seed=1), *drawn}) > 2
    assert task.evaluate(4) == np.mean(task.returns(4))
    assert task.returns(4, seed=1) != task.returns(4)
    assert task.digest == digest
    assert (np.random.get_state()[1] == generator).all()


def test_the_goal_of_a_study_is_confirmed_by_different_episodes() -> None:
    task = load("sb3:PPO")("CartPole-v1").init(**SMALL["PPO"][1])
    task.fit(1)
    found, _ = play(lambda episodes, seed: task.returns(episodes, seed=seed), 10.0, 8.0, 1)
    assert len({*found}) > 3
