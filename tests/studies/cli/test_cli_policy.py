"""Policies on the command line: evaluated in other environments or untrained, exported and imported."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import stable_baselines3
import torch
from rekindle.spaces import unflatten
from rekindle.studies.storage.store import Store
from rekindle.tasks import PPO
from studying import TINY

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, PPO]:
    """The URL of a storage, and the task in it."""
    url = f"sqlite:///{tmp_path_factory.mktemp('policy') / 'rekindle.db'}"
    with Store(url) as store:
        task = PPO("CartPole-v1", seed=1, storage=store).init(**unflatten(TINY))
        task.fit(1)
        task.finish()
    return url, task


def result_of(cli: Cli, *words: Any) -> dict[str, Any]:
    status, out, errors = cli(*map(str, words), "--json")
    assert status == 0, errors
    result: dict[str, Any] = json.loads(out)
    return result


def test_a_checkpoint_is_evaluated_elsewhere(trained: tuple[str, PPO], cli: Cli, tmp_path: Path) -> None:
    url, task = trained
    storage = ["evaluate", task.uid[:8], "--storage", url, "--episodes", 2]
    env = {"max_episode_steps": 9}
    result = result_of(cli, *storage, "--env", json.dumps(env), "--seed", 7, "--record", tmp_path / "x.npz")
    assert result["return"] == task.evaluate(2, env=env, seed=7) <= 9
    assert result["env"] == {**task.env.to_json(), **env}
    assert (result["seed"], result["steps"]) == (7, 2 * result["return"])
    assert "env" not in result_of(cli, *storage)
    status, _, errors = cli(*map(str, [*storage, "--env", "Acrobot-v1"]))
    assert status == 2
    assert "is evaluated in environments of the same observation space" in errors


def test_epoch_zero_is_the_untrained_agent(trained: tuple[str, PPO], cli: Cli) -> None:
    url, task = trained
    fresh = PPO("CartPole-v1", seed=1).init(**unflatten(TINY))
    result = result_of(cli, "evaluate", f"{task.uid[:8]}@0", "--storage", url, "--episodes", 2)
    assert (result["epochs"], result["digest"], result["return"]) == (0, fresh.digest, fresh.evaluate(2))


def test_a_policy_is_exported_as_a_program(trained: tuple[str, PPO], cli: Cli, tmp_path: Path) -> None:
    url, task = trained
    result = result_of(cli, "export-policy", task.uid, tmp_path / "p.onnx", "--storage", url)
    assert (result["form"], result["bytes"]) == ("onnx", (tmp_path / "p.onnx").stat().st_size)
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    output = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    assert np.array_equal(session.run(None, {"observation": output})[0], task.predict(output)[0])
    status, _, errors = cli("export-policy", task.uid, str(tmp_path / "p.zip"), "--storage", url)
    assert status == 2
    assert "a policy is written as safetensors (.safetensors), torchscript (.pt), onnx (.onnx), but got" in errors


def test_a_model_of_stable_baselines3_is_imported_and_trained_on(cli: Cli, tmp_path: Path) -> None:
    model = stable_baselines3.A2C("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [16, 8]}, device="cpu")
    source, file, url = tmp_path / "a2c.zip", tmp_path / "policy.safetensors", f"sqlite:///{tmp_path / 'r.db'}"
    model.save(source)
    result = result_of(cli, "import-policy", source, file)
    assert result["hyperparameters"] == {"model.activation": "tanh", "model.hidden": [16, 8], "normalize_reward": False}
    status, out, _ = cli("import-policy", str(source), str(file))
    assert status == 0
    command = shlex.split(out.splitlines()[-1])
    assert command[:4] == ["rekindle", "train", "a2c", "ENV"]
    words = [*("--storage", url, "--epochs", 1, "--set", "epoch_steps=64", "--set", "num_steps=8"), *command[4:]]
    trained = result_of(cli, "train", "a2c", "CartPole-v1", *words)
    direct = [word if word != str(file) else str(source) for word in map(str, words)]
    assert result_of(cli, "train", "a2c", "CartPole-v1", *direct)["uid"] == trained["uid"]
    assert cli("import-policy", str(file), str(file))[0] == 2


def test_networks_that_no_task_here_can_have_are_not_imported(cli: Cli, tmp_path: Path) -> None:
    kwargs = {"net_arch": [8], "activation_fn": torch.nn.SiLU}
    source, file = tmp_path / "sac.zip", tmp_path / "policy.safetensors"
    stable_baselines3.SAC("MlpPolicy", "Pendulum-v1", buffer_size=10, policy_kwargs=kwargs, device="cpu").save(source)
    status, _, errors = cli("import-policy", str(source), str(file))
    assert status == 2
    assert "model.activation must be one of 'tanh', 'relu', 'elu', not 'silu'" in errors
    assert not file.exists()


def test_checkpoints_without_replay_memories_are_for_single_tasks(cli: Cli, tmp_path: Path) -> None:
    storage = ["--storage", f"sqlite:///{tmp_path / 'r.db'}", "--snapshots", "no-replay"]
    status, _, errors = cli("tune", "dqn", "CartPole-v1", *storage)
    assert status == 2
    assert "a study's trials resume with the same bits from one rung to the next, but --snapshots no-replay" in errors
    small = [word for name in ("learning_starts=64", "epoch_steps=100") for word in ("--set", name)]
    train = ["train", "dqn", "CartPole-v1", *storage, *small, "--epochs"]
    uid = result_of(cli, *train, 1)["uid"]
    status, _, errors = cli(*train, "2")
    assert status == 0
    assert "not bit-exact from here on: the replay buffer, which the checkpoint leaves out" in " ".join(errors.split())
    status, _, errors = cli("replay", uid, *storage[:2])
    assert status == 2
    assert "leave the replay memory out" in errors
