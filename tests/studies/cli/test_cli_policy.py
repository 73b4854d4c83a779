"""Policies by the command line: evaluated elsewhere and untrained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_checkpoint_is_evaluated_elsewhere(trained: tuple[str, PPO], cli: Cli, tmp_path: Path) -> None:
    url, task = trained
    where = ["evaluate", task.uid[:8], "--storage", url, "--episodes", 2]
    env = {"max_episode_steps": 9}
    found = result_of(cli, *where, "--env", json.dumps(env), "--seed", 7, "--record", tmp_path / "x.npz")
    assert found["return"] == task.evaluate(2, env=env, seed=7) <= 9
    assert found["env"] == {**task.env.to_json(), **env}
    assert (found["seed"], found["steps"]) == (7, 2 * found["return"])
    assert "env" not in result_of(cli, *where)
    status, _, errors = cli(*map(str, [*where, "--env", "Acrobot-v1"]))
    assert status == 2
    assert "is evaluated in environments of the same observation space" in errors


def test_epoch_zero_is_the_untrained_agent(trained: tuple[str, PPO], cli: Cli) -> None:
    url, task = trained
    fresh = PPO("CartPole-v1", seed=1).init(**unflatten(TINY))
    found = result_of(cli, "evaluate", f"{task.uid[:8]}@0", "--storage", url, "--episodes", 2)
    assert (found["epochs"], found["digest"], found["return"]) == (0, fresh.digest, fresh.evaluate(2))
